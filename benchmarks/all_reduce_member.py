"""A member of all_reduce.py: TensorFlow's collectives, with one program per host.

All members read the same requests at the same time.
"""

from collections.abc import Callable
from typing import Any

import all_reduce_bench
import tensorflow as tf
from all_reduce_bench import Waiter, gradients
from answering import serve

SUM = tf.distribute.ReduceOp.SUM


class Bench(all_reduce_bench.Bench):
    """Functions that reduce over the replicas of a strategy, one per host."""

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._least = tf.function(self._rounds("RING", {}, size=4, rounds=1))

    def _meet(self) -> None:
        self._least().numpy()

    def _rounds(
        self, ops: str, options: dict[str, Any], size: int, rounds: int
    ) -> Callable[[], tf.Tensor]:
        """Rounds of which each reduces what the one before it gave."""
        hints = _options(ops, options)
        (variable,) = self._held(size, 1)

        def replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            for _ in range(rounds):
                value = context.all_reduce(SUM, variable.read_value(), options=hints)
                done = _kept([value], [variable])
            return done

        return lambda: self._strategy.run(replica)

    def _step(
        self,
        ops: str | None,
        options: dict[str, Any],
        layers: int,
        layer_bytes: int,
        compute_seconds: float,
    ) -> Callable[[], tf.Tensor]:
        """A backward pass whose gradients are reduced; kept, if there are no `ops`."""
        hints = _options(ops or "AUTO", options)
        weights = self._held(layer_bytes, layers)
        wait = Waiter(compute_seconds / layers)

        def replica() -> tf.Tensor:
            values = gradients(weights, wait)
            if ops:
                context = tf.distribute.get_replica_context()
                values = context.all_reduce(SUM, values, options=hints)
            return _kept(values, weights)

        return lambda: self._strategy.run(replica)

    def _held(self, size: int, number: int) -> list[tf.Variable]:
        if (size, number) not in self._variables:
            self._variables[size, number] = [
                tf.Variable(tf.zeros([size // 4])) for _ in range(number)
            ]
        return self._variables[size, number]


def _options(ops: str, options: dict[str, Any]) -> Any:
    implementation = getattr(
        tf.distribute.experimental.CommunicationImplementation, ops
    )
    return tf.distribute.experimental.CommunicationOptions(
        implementation=implementation, **options
    )


def _kept(values: list[tf.Tensor], variables: list[tf.Variable]) -> tf.Tensor:
    """Assigns the sums, and returns a number that depends on them."""
    assigned = [
        variable.assign(value, read_value=False)
        for variable, value in zip(variables, values, strict=True)
    ]
    with tf.control_dependencies(assigned):
        return tf.identity(tf.ones([]))


if __name__ == "__main__":
    serve(lambda: Bench(tf.distribute.MultiWorkerMirroredStrategy()))
