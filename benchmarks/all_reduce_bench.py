"""What both clusters of all_reduce.py time: functions that reduce, and a backward pass.

The backward pass takes time but no processor. Many hosts share the few processors of this
machine: a model that computed would slow down the exchange of the others. So each layer
sleeps instead, and then returns its gradient.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.dataset_options_pb2 import Options

NOTHING = {"output_types": [tf.float32], "output_shapes": [[]]}


class Bench:
    """Functions by their case, each traced once.

    A cluster's own bench builds them: `_rounds` reduces, and `_step` is a backward pass
    whose gradients are reduced.
    """

    def __init__(self) -> None:
        self._variables: dict[tuple[int, int], Any] = {}
        self._functions: dict[str, Callable[[], tf.Tensor]] = {}

    def forget(self) -> None:
        """Frees the memory of the cases."""
        self._variables.clear()
        self._functions.clear()

    def run(self, calls: int, **case: Any) -> dict[str, float]:
        """Calls the function of a case, which is traced and called once if it is new.

        Args:
            calls: The number of timed calls.
            **case: The arguments of `_rounds` or `_step`.

        Returns:
            The seconds of a call; 0 if there is none.
        """
        key = json.dumps(case, sort_keys=True)
        if key not in self._functions:
            build = self._step if "layers" in case else self._rounds
            self._functions[key] = tf.function(build(**case))
            self._functions[key]().numpy()
        self._meet()
        start = time.perf_counter()
        for _ in range(calls):
            self._functions[key]().numpy()
        return {"seconds": (time.perf_counter() - start) / max(1, calls)}

    def _meet(self) -> None:
        """Waits for the other programs that run this case."""


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
