"""Context variables that are set for a while."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    """Sets a context variable, and puts its value back at the end."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
