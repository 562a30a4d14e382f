"""A member of all_reduce.py: TensorFlow's collectives, with one program per host.

All members read the same requests from standard input at the same time, one line of JSON
each, and answer each with a line.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from all_reduce_backward import Waiter, gradients

SUM = tf.distribute.ReduceOp.SUM


class Bench:
    """Functions that reduce over the replicas of a strategy, one per host."""

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        self._strategy = strategy
        self._variables: dict[tuple[int, int], list[tf.Variable]] = {}
        self._functions: dict[str, Callable[[], tf.Tensor]] = {}
        self._meet = tf.function(self._rounds("RING", {}, size=4, rounds=1))

    def forget(self) -> None:
        """Frees the memory of what was reduced."""
        self._variables.clear()
        self._functions.clear()

    def run(self, calls: int, **case: Any) -> dict[str, float]:
        """Calls the function of a case, which is traced and called once if it is new.

        Args:
            calls: The number of timed calls, once all members are ready.
            **case: The arguments of `_rounds` or `_step`.

        Returns:
            The seconds of a call; 0 if there is none.
        """
        key = json.dumps(case, sort_keys=True)
        if key not in self._functions:
            build = self._step if "layers" in case else self._rounds
            self._functions[key] = tf.function(build(**case))
            self._functions[key]().numpy()
        self._meet().numpy()
        start = time.perf_counter()
        for _ in range(calls):
            self._functions[key]().numpy()
        return {"seconds": (time.perf_counter() - start) / max(1, calls)}

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


def main() -> None:
    """Answers requests until there is none."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    bench = Bench(tf.distribute.MultiWorkerMirroredStrategy())
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.pop("do") == "forget":
            bench.forget()
            answer: dict[str, float] = {}
        else:
            answer = bench.run(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
