"""Makes the links of a README work on a package index: FILE [ADDRESS].

With the address of the repository, such as `https://github.com/me/tfdist/blob/v1`, a link
to a file becomes absolute. Without one it becomes its text, and a picture its description.
"""

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")


def rewritten(text: str, address: str = "") -> str:
    """Returns the text of a README without relative links."""

    def absolute(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        if not address:
            return f"*{words}*" if picture else words
        query = "?raw=true" if picture else ""
        return f"{picture}[{words}]({address.rstrip('/')}/{path}{query})"

    return _LINK.sub(absolute, text)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewritten(file.read_text(), *sys.argv[2:]))
