"""A backward pass that takes its time without taking the processor's.

Many hosts share this machine's few processors: a model that computed would take the time
of the others' exchange. So each layer waits instead, by an op that sleeps, and its
gradient is there after that.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf


def wait(after: tf.Tensor, seconds: float) -> tf.Tensor:
    """Returns a scalar some seconds after it is there."""
    dataset = tf.data.Dataset.from_tensors(after)
    # Sleeps on a thread of tf.data: those that run other ops stay free.
    slept = tf.raw_ops.SleepDataset(
        input_dataset=dataset._variant_tensor,
        sleep_microseconds=tf.constant(int(seconds * 1e6), tf.int64),
        output_types=[after.dtype],
        output_shapes=[after.shape],
    )
    (value,) = tf.raw_ops.DatasetToSingleElement(
        dataset=slept, output_types=[after.dtype], output_shapes=[after.shape]
    )
    return value


def gradients(weights: Sequence[tf.Variable], seconds: float) -> list[tf.Tensor]:
    """Returns the gradient of each layer's weights, the last layer's first to be there.

    Args:
        weights: One for each layer, on the device that computes.
        seconds: What the layers take together, one after the other.
    """
    layers = [_layer(each, seconds / len(weights)) for each in weights]
    with tf.GradientTape() as tape:
        x = tf.ones([])
        for layer in layers:
            x = layer(x)
    found = tape.gradient(x, list(weights))
    return [tf.convert_to_tensor(each) for each in found]


def _layer(weights: tf.Variable, seconds: float) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def layer(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
        held = weights.read_value()

        def backward(
            upstream: tf.Tensor, variables: Sequence[tf.Variable]
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            waited = wait(upstream, seconds)
            with tf.control_dependencies([waited]):
                return waited, [tf.identity(held)]

        return tf.identity(x), backward

    return layer
