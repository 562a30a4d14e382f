"""Checks of the numbers that policies take. Pure."""

import operator
from typing import Any


def count_of(owner: str, name: str, value: Any, least: int, otherwise: str = "") -> int:
    """Returns a number of things as Python's integer.

    Args:
        owner: The class that takes it.
        name: Its name there.
        value: Any integer type; NumPy's integers count too, booleans do not.
        least: The least that is allowed.
        otherwise: Other values that are allowed, in words.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is less.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or type(value).__name__ in ("bool", "bool_"):
        raise TypeError(
            f"{name} of {owner} must be a whole number from {least}{otherwise}; received "
            f"{value!r}, of type {type(value).__name__}"
        )
    if count < least:
        raise ValueError(
            f"{name} of {owner} must be a whole number from {least}{otherwise}; received "
            f"{value!r}"
        )
    return count
