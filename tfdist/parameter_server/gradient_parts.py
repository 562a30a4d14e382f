"""What the gradients of a variable become before its optimizer gets them."""

from typing import Any

import tensorflow as tf

from tfdist.variables.partitioned import PartitionedVariable


def per_shard(var: PartitionedVariable, argument: Any) -> list[Any]:
    """Splits a gradient into one part per shard; repeats any other argument."""
    if isinstance(argument, tf.IndexedSlices):
        return var.changes.parts_of(argument)
    # Of a gradient, TensorFlow may not know the shape, nor even the rank.
    if tf.is_tensor(argument) and argument.shape.is_compatible_with(var.shape):
        if isinstance(argument, tf.Tensor):
            argument.set_shape(var.shape)
        return var.changes.parts_of(argument)
    return [argument] * len(var.shards)


def sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values of each row, so that every row occurs once in the gradient.

    Optimizers square gradients, and the sum of squares is not the square of the sum.
    """
    # Sum where the gradient was computed: on a worker, this saves sending duplicates.
    with tf.device(gradient.values.device):
        rows, positions = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)
