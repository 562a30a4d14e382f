"""Typed access to the fields of a JSON object."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


class RefusedError(ValueError):
    """A field has a value of the wrong type or out of range."""

    def __init__(self, key: str, wanted: str, received: Any) -> None:
        super().__init__(f"{key!r} is {wanted}; received {received!r}")


Parser = Callable[[str, Any], Any]
"""Takes a field's name and value; returns the value, or raises RefusedError."""

# Not None, which is the default of some fields.
_REQUIRED = object()


def get(
    row: Mapping[str, Any], key: str, parse: Parser, default: Any = _REQUIRED
) -> Any:
    """Returns the value of a field, or the default if the field is missing.

    Raises ValueError if it is missing and has no default.
    """
    if key in row:
        return parse(key, row[key])
    if default is _REQUIRED:
        raise ValueError(f"{key!r} is missing")
    return default


def _of_type(kind: type, wanted: str, key: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise RefusedError(key, wanted, value)
    return value


an_object = partial(_of_type, dict, "an object")
text = partial(_of_type, str, "a text")
flag = partial(_of_type, bool, "true or false")
a_list = partial(_of_type, list, "a list")


def whole(least: int | None) -> Parser:
    """Returns a parser of whole numbers, at least `least`."""

    def parse(key: str, value: Any) -> int:
        # In Python a bool is an int, but JSON's true is no number.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or (least is not None and value < least):
            at_least = "" if least is None else f", at least {least}"
            raise RefusedError(key, f"a whole number{at_least}", value)
        return int(value)

    return parse


def ratio(key: str, value: Any) -> float:
    """Parses a finite number above 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 < value < math.inf:
        raise RefusedError(key, "a number above 1", value)
    return float(value)


def one_of(allowed: tuple[str, ...]) -> Parser:
    """Returns a parser of one of these strings."""

    def parse(key: str, value: Any) -> str:
        if value not in allowed:
            raise RefusedError(key, f"one of {allowed}", value)
        return str(value)

    return parse


def list_of(parse: Parser) -> Parser:
    """Returns a parser of lists whose elements `parse` accepts."""
    return lambda key, value: [parse(key, each) for each in a_list(key, value)]
