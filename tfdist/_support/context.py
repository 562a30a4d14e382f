"""Context variables and attributes that are set for a while."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    """Sets a context variable, and puts its value back at the end."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def having(owner: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of an object, and puts their values back at the end."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
