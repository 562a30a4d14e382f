"""Functions within a step, which each trace of the step traces for itself.

A `@tf.function` that a step calls keeps what it has traced. But what it traces also
depends on what surrounds the step: a rehearsal writes no variable, and a replica counts
its own examples. So no trace of a step may get what another one has left there.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tfdist import _tf

_current: ContextVar[object | None] = ContextVar("trace", default=None)


def install() -> None:
    """Makes every `tf.function` ask for the current trace."""
    _tf.retrace_where_differs(_current.get)


@contextlib.contextmanager
def own_trace() -> Iterator[None]:
    """Traces anew, once, each `tf.function` that is called within this context."""
    token = _current.set(object())
    try:
        yield
    finally:
        _current.reset(token)


def traced_alone(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step each of whose traces is an own one."""

    @functools.wraps(step)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with own_trace():
            return step(*args, **kwargs)

    return traced
