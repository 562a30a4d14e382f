"""A backward pass that takes its time without taking the processor's.

Many hosts share this machine's few processors: a model that computed would take the time
of the others' exchange. So each layer waits instead, and its gradient is there after
that.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.core.framework.dataset_options_pb2 import Options

NOTHING = {"output_types": [tf.float32], "output_shapes": [[]]}


class Waiter:
    """Waits in a graph, on the device that is current when it is made.

    An element of a dataset is waited for: TensorFlow does that on a thread of its own,
    so all that run operations stay free.

    Args:
        seconds: How long.
    """

    def __init__(self, seconds: float) -> None:
        one = tf.raw_ops.TensorDataset(components=[tf.ones([])], output_shapes=[[]])
        endless = tf.raw_ops.RepeatDataset(
            input_dataset=one, count=tf.constant(-1, tf.int64), **NOTHING
        )
        microseconds = tf.constant(int(seconds * 1e6), tf.int64)
        slept = tf.raw_ops.SleepDataset(
            input_dataset=endless, sleep_microseconds=microseconds, **NOTHING
        )
        # By default, elements are fetched in advance: nobody would wait for them.
        options = Options()
        options.autotune_options.enabled = False
        options.optimization_options.apply_default_optimizations = False
        options.optimization_options.inject_prefetch = False
        plain = tf.raw_ops.OptionsDataset(
            input_dataset=slept,
            serialized_options=options.SerializeToString(),
            **NOTHING,
        )
        self._iterator = tf.raw_ops.AnonymousIteratorV3(**NOTHING)
        tf.raw_ops.MakeIterator(dataset=plain, iterator=self._iterator)

    def __call__(self, after: tf.Tensor) -> tf.Tensor:
        """Returns a scalar some seconds after it is there."""
        with tf.control_dependencies([after]):
            (one,) = tf.raw_ops.IteratorGetNext(iterator=self._iterator, **NOTHING)
        return after * one


def gradients(weights: Sequence[tf.Variable], wait: Waiter) -> list[tf.Tensor]:
    """Returns the gradient of each layer's weights, the last layer's first to be there.

    Args:
        weights: One for each layer, on the device that computes.
        wait: What a layer takes.
    """
    with tf.GradientTape() as tape:
        x = tf.ones([])
        for each in weights:
            x = _layer(each, wait)(x)
    return [tf.convert_to_tensor(each) for each in tape.gradient(x, list(weights))]


def _layer(weights: tf.Variable, wait: Waiter) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def layer(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
        held = weights.read_value()

        def backward(
            upstream: tf.Tensor, variables: Sequence[tf.Variable]
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            waited = wait(upstream)
            with tf.control_dependencies([waited]):
                return waited, [tf.identity(held)]

        return tf.identity(x), backward

    return layer
