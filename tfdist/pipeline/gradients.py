"""Sums of gradients, which may have some rows only."""

from typing import Any

import tensorflow as tf


def add_up(total: Any, gradient: Any) -> Any:
    """Returns the sum of two gradients, either of which may be None.

    Rows of an embedding stay rows: they are put one after the other, as in the gradient
    of a whole batch, and the optimizer adds up those of the same number.
    """
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([total.values, gradient.values], 0),
            tf.concat([total.indices, gradient.indices], 0),
            total.dense_shape,
        )
    return dense(total) + dense(gradient)


def dense(gradient: Any) -> Any:
    """Returns a gradient as a tensor."""
    return tf.convert_to_tensor(gradient)
