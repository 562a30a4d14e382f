"""The sum of one variable's gradients in a round, beside the variable."""

from typing import Any, Protocol

import tensorflow as tf

from tfdist.parameter_server.resources import Resource

# TensorFlow's accumulators have kernels for these only.
_SUMMED = (tf.float32, tf.float64)


class Accumulator(Protocol):
    """Adds gradients up, and gives the sum once there are enough."""

    device: str

    def add(self, gradient: Any, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it: see `Turnstile.admit`."""
        ...

    def take(self, count: tf.Tensor) -> Any:
        """Waits for so many gradients, and returns their sum. Begins the next one."""
        ...


class DenseAccumulator:
    """Sums tensors in place. Memory on the ps: one tensor of that shape.

    Args:
        shape: Of the gradients.
        dtype: Of the gradients.
        device: The device of the ps.
    """

    def __init__(self, shape: tf.TensorShape, dtype: tf.DType, device: str) -> None:
        self.device = device
        self._dtype = dtype
        self._sum_dtype = dtype if dtype in _SUMMED else tf.float32
        self._sum = Resource(
            "ResourceConditionalAccumulator",
            device,
            dtype=self._sum_dtype,
            shape=shape,
            reduction_type="SUM",
        )
        self._shape = shape

    def add(self, gradient: tf.Tensor, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it."""
        with tf.device(self.device):
            tf.raw_ops.ResourceAccumulatorApplyGradient(
                handle=self._sum.handle,
                local_step=step,
                gradient=tf.cast(gradient, self._sum_dtype),
            )

    def take(self, count: tf.Tensor) -> tf.Tensor:
        """Waits for so many gradients, and returns their sum, as a float."""
        with tf.device(self.device):
            taken = tf.raw_ops.ResourceAccumulatorTakeGradient(
                handle=self._sum.handle, num_required=count, dtype=self._sum_dtype
            )
        taken.set_shape(self._shape)
        return taken


class RowAccumulator:
    """Keeps gradients of rows until they are taken.

    Memory on the ps: the rows of all gradients of a round.

    Args:
        row_shape: Of the values of one row.
        dtype: Of the values.
        index_dtype: Of the indices of rows.
        device: The device of the ps.
    """

    def __init__(
        self,
        row_shape: tf.TensorShape,
        dtype: tf.DType,
        index_dtype: tf.DType,
        device: str,
    ) -> None:
        self.device = device
        self._types = [index_dtype, dtype, tf.int32]
        self._shapes = [tf.TensorShape([None]), [None, *row_shape], tf.TensorShape([])]
        # Gradients have different numbers of rows, which a queue of batches pads.
        self._kept = Resource(
            "PaddingFIFOQueueV2",
            device,
            component_types=self._types,
            shapes=[tf.TensorShape(each) for each in self._shapes],
            capacity=-1,
        )
        self._row_shape = row_shape

    def add(self, gradient: tf.IndexedSlices, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it."""
        with tf.device(self.device):
            many = tf.cast(step >= 0, tf.int32)
            indices, values = tf.identity(gradient.indices), gradient.values
            # A shard of which the batch has no row would crash the queue.
            padding = [tf.pad(indices, [[0, 1]]), _with_a_row(values)]
            each = [*padding, tf.size(indices)]
            tf.raw_ops.QueueEnqueueManyV2(
                handle=self._kept.handle,
                components=[tf.expand_dims(part, 0)[:many] for part in each],
            )

    def take(self, count: tf.Tensor) -> tf.IndexedSlices:
        """Waits for so many gradients, and returns the rows of all of them."""
        with tf.device(self.device):
            indices, values, sizes = tf.raw_ops.QueueDequeueManyV2(
                handle=self._kept.handle, n=count, component_types=self._types
            )
            indices.set_shape([None, None])
            values.set_shape([None, None, *self._row_shape])
            sizes.set_shape([None])
            is_row = tf.sequence_mask(sizes, tf.shape(indices)[1])
            return tf.IndexedSlices(
                tf.boolean_mask(values, is_row), tf.boolean_mask(indices, is_row)
            )


def _with_a_row(values: tf.Tensor) -> tf.Tensor:
    return tf.pad(values, [[0, 1], *([[0, 0]] * (values.shape.rank - 1))])
