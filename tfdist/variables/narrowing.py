"""Restricts an update to a whole weight and its slots, one shard, or some rows.

An optimizer is written for whole variables: it reads a weight and its slots, and
writes them. To let the same code run next to each shard of a partitioned weight, or
on the rows that a step has looked up, reads and writes of the weight and its slots
are narrowed while the update runs.
"""

import contextvars
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist._support.context import setting

# Context variables, and not arguments, since Keras's optimizer is between the caller that
# narrows and the variable that is read or written, and passes nothing on.
_shard: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "shard", default=None
)
_rows: contextvars.ContextVar[tuple[Any, tf.Tensor] | None] = contextvars.ContextVar(
    "rows", default=None
)


def of_shard(index: int) -> AbstractContextManager[None]:
    """Narrows partitioned variables to their shard of this index."""
    return setting(_shard, index)


def of_rows(weight: Any, rows: tf.Tensor) -> AbstractContextManager[None]:
    """Narrows a weight on a ps, and the slots next to it, to some of their rows.

    Rows are indices, each once: an integer vector.
    """
    return setting(_rows, (weight, rows))


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
