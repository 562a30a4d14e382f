"""Accumulation of one variable's gradients for a synchronous step."""

from typing import Any

import tensorflow as tf


class Accumulator:
    """Sums the gradients of one variable, on the variable's device."""

    def __init__(self, grad: Any, var: tf.Variable) -> None:
        self._device = var.device
        self._is_sparse = isinstance(grad, tf.IndexedSlices)
        kind = (
            tf.compat.v1.SparseConditionalAccumulator
            if self._is_sparse
            else tf.compat.v1.ConditionalAccumulator
        )
        # Each replica builds a graph; the shared name makes all of them use the one
        # accumulator on the ps.
        with tf.compat.v1.device(self._device):
            self._sum = kind(
                grad.dtype, shape=var.shape, shared_name=f"{var.op.name}/sync_replicas"
            )

    def add(self, grad: Any, step: tf.Tensor) -> tf.Operation:
        """Adds a gradient; drops it if `step` is over."""
        with tf.compat.v1.device(self._device):
            if self._is_sparse:
                return self._sum.apply_indexed_slices_grad(grad, step)
            return self._sum.apply_grad(grad, step)

    def take(self) -> Any:
        """Returns the average of the gradients, and begins the next step."""
        # All gradients that count have been added by now. Requiring their number could
        # wait forever: a restarted chief discards gradients that were already added.
        with tf.compat.v1.device(self._device):
            if self._is_sparse:
                return self._sum.take_indexed_slices_grad(1)
            return self._sum.take_grad(1)

    def count(self) -> tf.Tensor:
        """Returns the number of gradients added."""
        with tf.compat.v1.device(self._device):
            return self._sum.num_accumulated()

    def begin(self, step: tf.Tensor) -> tf.Operation:
        """Begins a step: gradients of earlier steps will be dropped."""
        with tf.compat.v1.device(self._device):
            return self._sum.set_global_step(step)
