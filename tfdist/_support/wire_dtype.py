"""Check of `wire_dtype`: the dtype in which a strategy sends values. Pure."""

from collections.abc import Collection
from typing import Any


def checked_wire_dtype(wire_dtype: Any, allowed: Collection[str]) -> str | None:
    """Returns the name of an allowed dtype, which may be given as a dtype, or None.

    Raises:
        ValueError: If it is another one.
    """
    name = getattr(wire_dtype, "name", getattr(wire_dtype, "__name__", wire_dtype))
    if name is None or (isinstance(name, str) and name in allowed):
        return name
    raise ValueError(
        f"wire_dtype must be one of {', '.join(map(repr, allowed))}, or None to send values "
        f"as they are; received {wire_dtype!r}"
    )
