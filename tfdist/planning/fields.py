"""The fields of a JSON object, each of the type that it should have."""

import math
from collections.abc import Callable, Mapping
from typing import Any


class RefusedError(ValueError):
    """A field has not what it should have.

    Args:
        key: The name of the field.
        wanted: What it should have.
        received: What it has.
    """

    def __init__(self, key: str, wanted: str, received: Any) -> None:
        super().__init__(f"{key!r} is {wanted}; received {received!r}")


Parser = Callable[[str, Any], Any]
"""Takes the name of a field and what it has; returns that, or refuses it."""

_REQUIRED = object()


def get(
    row: Mapping[str, Any], key: str, parse: Parser, default: Any = _REQUIRED
) -> Any:
    """Returns what a field has, or the default where there is no such field.

    Raises:
        RefusedError: If the parser refuses it.
        ValueError: If it is missing, and there is no default.
    """
    if key in row:
        return parse(key, row[key])
    if default is _REQUIRED:
        raise ValueError(f"{key!r} is missing")
    return default


def an_object(key: str, value: Any) -> dict[str, Any]:
    """Parses an object."""
    return _of_type(dict, "an object", key, value)


def text(key: str, value: Any) -> str:
    """Parses a text."""
    return _of_type(str, "a text", key, value)


def flag(key: str, value: Any) -> bool:
    """Parses a truth value."""
    return _of_type(bool, "true or false", key, value)


def a_list(key: str, value: Any) -> list[Any]:
    """Parses a list."""
    return _of_type(list, "a list", key, value)


def _of_type(kind: type, wanted: str, key: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise RefusedError(key, wanted, value)
    return value


def whole(least: int | None) -> Parser:
    """Returns the parser of whole numbers from `least`."""

    def parse(key: str, value: Any) -> int:
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
    """Returns the parser of one of these texts."""

    def parse(key: str, value: Any) -> str:
        if value not in allowed:
            raise RefusedError(key, f"one of {allowed}", value)
        return str(value)

    return parse


def list_of(parse: Parser) -> Parser:
    """Returns the parser of lists of what another one parses."""
    return lambda key, value: [parse(key, each) for each in a_list(key, value)]
