"""Functions within a step, which each trace of the step traces for itself.

A `@tf.function` that a step calls keeps what it has traced. But what it traces also
depends on what surrounds the step: a rehearsal writes no variable, and a replica counts
its own examples. So no trace of a step may get what another one has left there.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from tfdist import _tf
from tfdist._support.context import setting

_current: ContextVar[object | None] = ContextVar("trace", default=None)


def install() -> None:
    """Makes every `tf.function` ask for the current trace."""
    _tf.retrace_where_differs(_current.get)


def own_trace() -> AbstractContextManager[None]:
    """Traces anew, once, each `tf.function` that is called within this context."""
    return setting(_current, object())


def traced_alone(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step each of whose traces is an own one."""

    @functools.wraps(step)
    def traced(*args: object, **kwargs: object) -> Any:
        with own_trace():
            return step(*args, **kwargs)

    return traced
