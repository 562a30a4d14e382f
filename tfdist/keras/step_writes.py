"""Compares which variables a step writes in its rehearsal and in each later trace.

A step is rehearsed before it is traced to run. If it changes Python state that decides what
it does, such as a counter of its own, the rehearsal has that effect, too: the trace that
runs would then do something else than in plain Keras.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras

from tfdist._support.context import setting
from tfdist._support.errors import RefusalError

_noted: ContextVar[dict[int, str] | None] = ContextVar("writes", default=None)


class LostWritesError(RefusalError):
    """A step writes fewer variables than it did when it was rehearsed."""


class NotingScope(keras.StatelessScope):
    """A scope that writes nothing, and notes what would have been written."""

    def add_update(self, update: Any) -> None:
        """Takes an update, a pair of a variable and its value."""
        note_write(update[0])
        # A tape needs the variable itself, and finds a value in its place after an update.
        if not update[0].trainable:
            super().add_update(update)


def note_write(variable: keras.Variable) -> None:
    """Notes a Keras variable that is being written."""
    noted = _noted.get()
    if noted is not None:
        noted[id(variable)] = variable.path


@contextlib.contextmanager
def noting() -> Iterator[dict[int, str]]:
    """Yields the variables that are written within this context, by identity."""
    noted: dict[int, str] = {}
    with setting(_noted, noted):
        yield noted


def check_writes(rehearsed: dict[int, str], traced: dict[int, str], step: str) -> None:
    """Checks that a trace of a step writes the same as its rehearsal."""
    lost = [path for key, path in rehearsed.items() if key not in traced]
    if lost:
        raise LostWritesError(
            f"{step} writes {', '.join(sorted(lost))} when it is traced for the first "
            "time, and not when it is traced again. Python state that the step itself "
            "changes decides this, such as a counter; TensorFlow runs Python only when it "
            "traces a step. Keep such state in a weight (add_weight), and decide by "
            "tf.cond or tf.where; or set it before fit"
        )
