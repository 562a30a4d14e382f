"""Short names of types, and of types that TensorFlow and Keras do not name."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

GraphDef: TypeAlias = tf.compat.v1.GraphDef
NodeDef: TypeAlias = tf.compat.v1.NodeDef
ConcreteFunction: TypeAlias = tf.types.experimental.ConcreteFunction
RemoteValue: TypeAlias = tf.distribute.experimental.coordinator.RemoteValue

Nest = Any
"""Tensors, specs or values, or tuples, lists and dicts of them, as `tf.nest` takes them."""

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""A gradient: dense, or of some rows."""

Pairs: TypeAlias = Sequence[tuple[Gradient | None, tf.Variable]]
"""Gradients with their variables."""

Stride: TypeAlias = tuple[int, int, Iterator[Nest]]
"""Steps that follow each other without a callback: the first, the last, their batches."""

Logs = dict[str, Any]
"""Keras's logs: metrics by name."""

After: TypeAlias = Sequence[tf.Tensor | tf.Operation]
"""The control dependencies of an operation, as `tf.control_dependencies` takes it."""


class DataAdapter(Protocol):
    """Keras's view of the data of a call, whatever was passed to it."""

    num_batches: int | None
    batch_size: int | None
    partial_batch_size: int | None

    def get_tf_dataset(self) -> tf.data.Dataset:
        """Returns the data as batches."""


class EpochIterator(Protocol):
    """Keras's iterator over the strides of each epoch of a call."""

    data_adapter: DataAdapter
    num_batches: int | None
    steps_per_epoch: int | None
    steps_per_execution: int
    reads_on: bool
    _current_iterator: Iterator[Nest] | None
    _num_batches: int | None
    _steps_seen: int
