"""The chief of embedding_traffic.py, which runs on its own host.

`prepare` creates the table and runs the first steps; `run` runs steps.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from answering import serve
from lookup_workload import Workload

import tfdist
from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)

AGGREGATE = {"plain": False, "aggregated": True, "chosen": None}
LEARNING_RATE = 0.1


class OneOnEach:
    """Places the shards on the ps in turn."""

    def __init__(self) -> None:
        self.next = 0

    def place(self, variable: tfdist.VariableSpec, num_ps: int) -> int:
        """Returns the next ps."""
        self.next += 1
        return (self.next - 1) % num_ps


class Bench:
    """A table on the ps, and one training step per route."""

    def __init__(self, strategy: tfdist.ParameterServerStrategy, placement: OneOnEach):
        self._strategy = strategy
        self._placement = placement
        self._shards: list[tf.Variable] = []
        self._table: tuple[int, int] | None = None
        self._steps: dict[tuple[str, int], Callable[..., Any]] = {}
        with strategy.scope():
            self._counter = LookupBytesCounter()

    def prepare(self, workload: dict[str, Any], route: str, steps: int) -> None:
        """Creates what `run` needs, and runs each batch once."""
        self._make_table(Workload(**workload))
        # TensorFlow cannot trace a function again that uses a worker's own variable.
        key = (route, workload["ids_per_row"])
        if key not in self._steps:
            self._steps[key] = tf.function(self._step_of(route))
        self._step = self._steps[key]
        batches = Workload(**workload).batches(steps)
        data = self._strategy.coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.from_tensor_slices(batches).repeat()
        )
        self._iterator = iter(data)
        self.run(steps)

    def run(self, steps: int) -> dict[str, float]:
        """Runs steps on the worker, over the next batches.

        Returns:
            The seconds, and the bytes by the lookup's counter.
        """
        coordinator = self._strategy.coordinator
        before = self._counter.total()
        start = time.perf_counter()
        for _ in range(steps):
            loss = coordinator.schedule(self._step, args=(self._iterator,))
        coordinator.join()
        seconds = time.perf_counter() - start
        assert np.isfinite(loss.fetch())
        return {
            "seconds": seconds,
            "counted": self._counter.total().moved - before.moved,
        }

    def _make_table(self, workload: Workload) -> None:
        table = (workload.num_rows, workload.dim)
        if table == self._table:
            return
        # The old table goes before the new one comes: both may not fit.
        self._shards, self._steps = [], {}
        self._table = table
        self._placement.next = 0
        size, larger = divmod(workload.num_rows, workload.num_ps)
        with self._strategy.scope():
            for shard in range(workload.num_ps):
                shape = [size + (shard < larger), workload.dim]
                self._shards.append(tf.Variable(lambda s=shape: tf.zeros(s)))
        tasks = [tf.DeviceSpec.from_string(each.device).task for each in self._shards]
        assert tasks == list(range(workload.num_ps)), tasks

    def _step_of(self, route: str) -> Callable[..., Any]:
        shards = self._shards

        def step(iterator: Any) -> tf.Tensor:
            sp_ids = tf.RaggedTensor.from_tensor(next(iterator)).to_sparse()
            with tf.GradientTape() as tape:
                if route == "stock":
                    rows = tf.compat.v1.nn.embedding_lookup_sparse(
                        shards, sp_ids, None, combiner="mean"
                    )
                else:
                    rows = embedding_lookup_sparse_with_distributed_aggregation(
                        shards,
                        sp_ids,
                        None,
                        combiner="mean",
                        aggregate=AGGREGATE[route],
                        counter=self._counter,
                    )
                loss = tf.reduce_mean(tf.square(rows - 1.0))
            gradients = tape.gradient(loss, shards)
            for shard, by_rows in zip(shards, gradients, strict=True):
                with tf.device(shard.device):
                    change = tf.IndexedSlices(
                        LEARNING_RATE * by_rows.values, by_rows.indices
                    )
                    shard.scatter_sub(change)
            return loss

        return step


def make_bench() -> Bench:
    """Connects to the cluster."""
    placement = OneOnEach()
    return Bench(tfdist.ParameterServerStrategy(placement=placement), placement)


if __name__ == "__main__":
    serve(make_bench)
