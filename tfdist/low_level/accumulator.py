"""The gradients of one variable that are on their way into a step."""

from typing import Any

import tensorflow as tf


class Accumulator:
    """The sum of one variable's gradients, beside the variable."""

    def __init__(self, grad: Any, var: tf.Variable) -> None:
        self._device = var.device
        self._is_sparse = isinstance(grad, tf.IndexedSlices)
        kind = (
            tf.compat.v1.SparseConditionalAccumulator
            if self._is_sparse
            else tf.compat.v1.ConditionalAccumulator
        )
        with tf.compat.v1.device(self._device):
            self._sum = kind(
                grad.dtype, shape=var.shape, shared_name=f"{var.op.name}/sync_replicas"
            )

    def add(self, grad: Any, step: tf.Tensor) -> tf.Operation:
        """Adds a gradient, or drops it if the step is over."""
        with tf.compat.v1.device(self._device):
            if self._is_sparse:
                return self._sum.apply_indexed_slices_grad(grad, step)
            return self._sum.apply_grad(grad, step)

    def take(self) -> Any:
        """Takes the average of what was added, and begins the next step."""
        # All that count have been added. To require their number would wait for ever
        # for those that were there when the last chief ended.
        with tf.compat.v1.device(self._device):
            if self._is_sparse:
                return self._sum.take_indexed_slices_grad(1)
            return self._sum.take_grad(1)

    def count(self) -> tf.Tensor:
        """Returns how many gradients were added."""
        with tf.compat.v1.device(self._device):
            return self._sum.num_accumulated()

    def begin(self, step: tf.Tensor) -> tf.Operation:
        """Begins a step: gradients of those before will be dropped."""
        with tf.compat.v1.device(self._device):
            return self._sum.set_global_step(step)
