"""Restricts an update to a whole weight and its slots, one shard, or some rows.

An optimizer is written for whole variables: it reads a weight and its slots, and
writes them. To let the same code run beside each shard of a partitioned weight, or
on the rows that a step has looked up, reads and writes of the weight and its slots
are narrowed while the update runs.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Context variables, and not arguments, since Keras's optimizer is between the caller that
# narrows and the variable that is read or written, and passes nothing on.
_shard: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "shard", default=None
)
_rows: contextvars.ContextVar[tuple[Any, tf.Tensor] | None] = contextvars.ContextVar(
    "rows", default=None
)


@contextlib.contextmanager
def of_shard(index: int) -> Iterator[None]:
    """Narrows partitioned variables to their shard of this index."""
    token = _shard.set(index)
    try:
        yield
    finally:
        _shard.reset(token)


@contextlib.contextmanager
def of_rows(weight: Any, rows: tf.Tensor) -> Iterator[None]:
    """Narrows a weight on a ps, and the slots beside it, to some of their rows.

    Rows are indices, each once: an integer vector.
    """
    token = _rows.set((weight, rows))
    try:
        yield
    finally:
        _rows.reset(token)


def shard_seen() -> int | None:
    """Returns the index of the shard that the current update is narrowed to, or None."""
    return _shard.get()


def rows_seen(variable: Any, beside: Any) -> tf.Tensor | None:
    """Returns the rows of a variable that the current update is narrowed to, or None.

    `beside` is the weight that it is a slot of, if it is one.
    """
    seen = _rows.get()
    # The update also reads variables without these rows, such as the step counter.
    if seen is None or (variable is not seen[0] and beside is not seen[0]):
        return None
    return seen[1]
