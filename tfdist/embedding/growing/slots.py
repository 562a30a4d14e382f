"""An optimizer's slots of a table that grows, and the first values of their rows."""

import weakref
from typing import Any

import tensorflow as tf

from tfdist.embedding.growing.reserved import set_rows
from tfdist.variables.initial_value import Unwritten, constant_of


class SlotOfRows(Unwritten):
    """Reserves the memory of a slot whose rows begin with `first`."""

    def __init__(self, first: float) -> None:
        self.first = float(first)


def initializer_of_slot(name: str, initializer: Any) -> SlotOfRows:
    """Returns a function that creates a slot without any written row.

    Raises:
        ValueError: If its rows do not all begin with one number.
    """
    if constant_of(initializer) is None:
        raise ValueError(
            f"{name}: the rows of a slot of a table that grows begin with one number, "
            f"as with keras.optimizers.Adagrad; received {initializer!r}"
        )
    return SlotOfRows(constant_of(initializer))


class Slots:
    """The slots of a table, each with the first value of its rows."""

    def __init__(self) -> None:
        # Weakly: an optimizer may be replaced.
        self._slots: list[tuple[weakref.ref[Any], float]] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: Any, first: float) -> None:
        """Adds a slot, and forgets slots that nobody has anymore."""
        self._slots = [each for each in self._slots if each[0]() is not None]
        self._slots.append((weakref.ref(slot), first))

    def write_first(self, index: int, rows: tf.Tensor) -> list[tf.Operation]:
        """Writes the first values of rows of a shard, in all slots."""
        there = [(reference(), first) for reference, first in self._slots]
        return [
            fill_rows(slot.shards[index], rows, first)
            for slot, first in there
            if slot is not None
        ]


def fill_rows(part: Any, rows: tf.Tensor, number: float) -> tf.Operation:
    """Sets all numbers of some rows to one."""
    shape = tf.concat([tf.shape(rows), part.shape[1:]], 0)
    values = tf.fill(shape, tf.cast(number, part.dtype))
    return set_rows(part.handle, tf.cast(rows, tf.int64), values)
