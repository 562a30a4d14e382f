"""Tensors that each worker keeps from one function to the next."""

import uuid
from collections.abc import Callable, Sequence

import tensorflow as tf


class Kept:
    """Some tensors, which every worker has of its own, or has not yet.

    They are found by their name, so a worker that comes back begins without them.

    Args:
        specs: The specs of the tensors; their shapes are fully defined.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self._specs = list(specs)
        # Workers may outlive a chief, and must not find the values of an earlier one.
        self._name = uuid.uuid4().hex

    def handles(self) -> list[tf.Tensor]:
        """Returns the handles, on the worker that runs the function being traced."""
        return [
            tf.raw_ops.VarHandleOp(
                dtype=spec.dtype, shape=spec.shape, shared_name=f"{self._name}/{i}"
            )
            for i, spec in enumerate(self._specs)
        ]

    def read(
        self,
        handles: Sequence[tf.Tensor],
        otherwise: Callable[[], Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Returns the tensors, or what `otherwise` returns, to begin with."""

        def kept() -> list[tf.Tensor]:
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
                for handle, spec in zip(handles, self._specs, strict=True)
            ]

        # To read a variable that is not there yet is an error, also if nobody uses the
        # value.
        tensors: list[tf.Tensor] = tf.cond(
            _are_here(handles), kept, lambda: list(otherwise())
        )
        for tensor, spec in zip(tensors, self._specs, strict=True):
            tensor.set_shape(spec.shape)
        return tensors

    def prepare(self, handles: Sequence[tf.Tensor]) -> None:
        """Begins with zeros where the worker has no tensors yet."""

        def zeros() -> tf.Tensor:
            for handle, spec in zip(handles, self._specs, strict=True):
                value = tf.zeros(spec.shape, spec.dtype)
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            return tf.constant(True)

        tf.cond(_are_here(handles), lambda: tf.constant(False), zeros)

    def write(self, handles: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> None:
        """Keeps these values."""
        for handle, value in zip(handles, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def forget(self, handles: Sequence[tf.Tensor]) -> None:
        """Frees the tensors, so that the next function begins anew."""
        for handle in handles:
            # A worker that has come back has none.
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def _are_here(handles: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns True if the worker has all of these tensors."""
    here = [tf.raw_ops.VarIsInitializedOp(resource=each) for each in handles]
    return tf.reduce_all(here)
