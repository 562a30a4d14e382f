"""A backward pass that takes time but no processor.

Many hosts share the few processors of this machine: a model that computed would slow down
the exchange of the others. So each layer sleeps instead, and then returns its gradient.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.core.framework.dataset_options_pb2 import Options

NOTHING = {"output_types": [tf.float32], "output_shapes": [[]]}


class Waiter:
    """Sleeps in a graph, on the device that is current when it is created.

    It waits for an element of a dataset, which TensorFlow does on a separate thread: the
    threads that run operations stay free.

    Args:
        seconds: How long it sleeps.
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
        """Returns its argument, a scalar, after the sleep."""
        with tf.control_dependencies([after]):
            (one,) = tf.raw_ops.IteratorGetNext(iterator=self._iterator, **NOTHING)
        return after * one


def gradients(weights: Sequence[tf.Variable], wait: Waiter) -> list[tf.Tensor]:
    """Returns the gradients of each layer's weights; the last layer's come first.

    Args:
        weights: One for each layer, on the device that computes.
        wait: Sleeps for the time of one layer.
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
