"""Numbers on a ps of which only those that were written take memory."""

from typing import Any

import tensorflow as tf

from tfdist.variables.initial_value import Unwritten
from tfdist.variables.resources import Resource


class Reserved(Resource):
    """Numbers on a ps of which only those that were written take memory.

    Nobody reads one that was not written, nor all of them at once: that would take the
    memory of all.

    Args:
        device: The device of the ps.
        size: How many they are.
        dtype: Their dtype.
    """

    def __init__(self, device: str, size: int, dtype: tf.DType = tf.int64) -> None:
        self._dtype = dtype
        super().__init__("VarHandleOp", device, dtype=dtype, shape=[size])
        with tf.init_scope(), tf.device(device):
            tf.raw_ops.AssignVariableOp(
                resource=self.handle, value=Unwritten()([size], dtype)
            )

    def at(self, rows: tf.Tensor) -> tf.Tensor:
        """Reads some of them."""
        with tf.device(self.device):
            values = tf.raw_ops.ResourceGather(
                resource=self.handle, indices=rows, dtype=self._dtype
            )
        values.set_shape(rows.shape)
        return values

    def add_at(self, rows: tf.Tensor, values: Any) -> tf.Operation:
        """Adds to some of them, of which each is there once."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceScatterNdAdd(
                ref=self.handle,
                indices=tf.expand_dims(rows, -1),
                updates=values,
                use_locking=True,
            )

    def set_at(self, rows: tf.Tensor, values: Any) -> tf.Operation:
        """Sets some of them."""
        with tf.device(self.device):
            return set_rows(self.handle, rows, values)


def set_rows(handle: tf.Tensor, rows: tf.Tensor, values: Any) -> tf.Operation:
    """Sets rows of a variable, of which nobody else sets the same ones."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=handle, indices=rows, updates=values
    )
