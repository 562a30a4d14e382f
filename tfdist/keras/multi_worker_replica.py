"""One replica's part of one step: its share of the batch, and what it has written."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_current: ContextVar["ReplicaStep | None"] = ContextVar("replica_step", default=None)


@dataclass(eq=False)
class ReplicaStep:
    """The part of a step that one replica runs, while it is traced.

    Attributes:
        replica: The index of the replica in the cluster, from 0, a scalar.
        count: The number of examples of this replica, a scalar; 0 if those that it
            has stand in for none.
        total: The number of examples of all replicas, a scalar.
        written: The Keras variables that the replica has set to a value of its own.
        is_updating: Whether what is written is the same on every replica anyhow.
    """

    replica: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    written: list[Any] = field(default_factory=list)
    is_updating: bool = False

    @property
    def share(self) -> tf.Tensor:
        """The replica's part of the examples, from 0 to 1."""
        return tf.cast(self.count, tf.float32) / tf.cast(self.total, tf.float32)

    def scaled(self, value: tf.Tensor) -> tf.Tensor:
        """The replica's part of a mean over all examples, from its own mean."""
        return value * tf.cast(self.share, value.dtype)

    def unscaled(self, value: tf.Tensor) -> tf.Tensor:
        """The replica's own mean, from its part of the mean over all examples."""
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))

    def counted(self, gradient: Any) -> Any:
        """The replica's gradient, or zeros if its examples stand in for none.

        The mean of a loss weighs those with 0 already; its sum does not.
        """
        if isinstance(gradient, tf.IndexedSlices):
            values = self.counted(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        # A choice and not a product, which would read and write the whole gradient.
        return tf.cond(
            self.count > 0, lambda: gradient, lambda: tf.zeros_like(gradient)
        )

    def wrote(self, variable: Any) -> None:
        """Notes that the replica has set a Keras variable to a value of its own."""
        if not self.is_updating and all(variable is not each for each in self.written):
            self.written.append(variable)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Notes nothing of what is written meanwhile."""
        before, self.is_updating = self.is_updating, True
        try:
            yield
        finally:
            self.is_updating = before


def current_step() -> ReplicaStep | None:
    """Returns the step that is being traced in this thread, or None."""
    return _current.get()


@contextlib.contextmanager
def replica_step(step: ReplicaStep) -> Iterator[ReplicaStep]:
    """Makes a step the current one of this thread."""
    token = _current.set(step)
    try:
        yield step
    finally:
        _current.reset(token)
