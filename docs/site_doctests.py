"""Shows the doctests of docstrings as code, for mkdocstrings.

Our docstrings put doctests where they help the text, without an `Examples:` heading, and
Markdown would take `>>>` for a quotation.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^([ ]*)(>>> .*(?:\n\1(?=\S).*)*)", re.M)


class Doctests(griffe.Extension):
    """Fences each doctest."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(
                r"\1```pycon\n\1\2\n\1```", obj.docstring.value
            )
