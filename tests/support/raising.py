"""Errors by key words, so that a test pins no sentence."""

import re
from typing import Any

import pytest


def raises(error: Any, *words: str) -> Any:
    """Expects an error whose text has these words, in this order.

    Args:
        error: Its class, or several.
        words: Received values, names and a key word or two, which tell it from others.
    """
    wanted = re.compile(".*".join(map(re.escape, words)), re.DOTALL)
    return pytest.raises(error, match=wanted)
