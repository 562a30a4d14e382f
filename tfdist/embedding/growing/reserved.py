"""Numbers on a ps that take memory only once they are written."""

from typing import Any

import tensorflow as tf

from tfdist.variables.initial_value import Unwritten
from tfdist.variables.resources import Numbers


class Reserved(Numbers):
    """Numbers on a ps that take memory only once they are written.

    Nobody reads one that was not written, nor all of them at once: that would take the
    memory of all.

    Args:
        device: The device of the ps.
        size: How many they are.
        dtype: Their dtype.
    """

    def __init__(self, device: str, size: int, dtype: tf.DType = tf.int64) -> None:
        shape = tf.TensorShape([size])
        self._create(device, shape, dtype, lambda: Unwritten()(shape, dtype))


def set_rows(handle: tf.Tensor, rows: tf.Tensor, values: Any) -> tf.Operation:
    """Sets rows of a variable that nobody else sets meanwhile."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=handle, indices=rows, updates=values
    )
