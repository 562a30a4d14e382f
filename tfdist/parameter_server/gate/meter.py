"""Counts, on a ps, how stale each step was when it wrote, and how long it waited."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.consistency.staleness import StalenessReport
from tfdist.consistency.timeline import StepTimes

COLUMNS = 257
"""Each staleness up to 255 is counted by itself, what is above together."""


class Meter:
    """Tables of the staleness and the time of each worker's steps, on one ps.

    Args:
        device: The device of the ps.
        num_workers: The number of workers.
        records: Whether to record the times of each step.

    Attributes:
        device: The device of the ps.
        records: Whether it records the times of each step.
    """

    def __init__(self, device: str, num_workers: int, records: bool = False) -> None:
        self.device = device
        self.records = records
        with tf.device(device):
            # A handle says which worker runs a function, and costs no message.
            self._workers = [
                tf.Variable(worker, trainable=False, dtype=tf.int64)
                for worker in range(num_workers)
            ]
            self._counts = tf.Variable(
                np.zeros([num_workers, COLUMNS], np.int64), trainable=False
            )
            # A step that records must not wait for the reader.
            self._times = tf.queue.FIFOQueue(
                2**31 - 1, [tf.float64], [[len(StepTimes._fields)]]
            )
            self._seconds = tf.Variable(
                np.zeros([num_workers, 2]), trainable=False, dtype=tf.float64
            )
            self._dropped = tf.Variable(
                np.zeros([num_workers], np.int64), trainable=False
            )

    def slot(self) -> list[tf.Tensor]:
        """Returns the tensors that tell a function which worker runs it."""
        return [_tf.of_this_worker([each.handle for each in self._workers])]

    def worker(self, handle: tf.Tensor) -> tf.Tensor:
        """Returns the index of the worker whose `slot` this is."""
        worker = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        worker.set_shape([])
        return worker

    def add_staleness(
        self, workers: tf.Tensor, staleness: tf.Tensor, counts: tf.Tensor
    ) -> tf.Operation:
        """Adds steps to the table: vectors of workers, their staleness, and whether."""
        columns = tf.clip_by_value(staleness, 0, COLUMNS - 1)
        return _add(
            self._counts, tf.stack([workers, columns], 1), tf.cast(counts, tf.int64)
        )

    def count(self, worker: int, staleness: int) -> None:
        """Adds a step to the table, at once."""
        with tf.device(self.device):
            self.add_staleness(
                tf.constant([worker], tf.int64),
                tf.constant([staleness], tf.int64),
                tf.constant([1], tf.int64),
            )

    def add_seconds(
        self, worker: tf.Tensor, waited: tf.Tensor, in_all: tf.Tensor
    ) -> tf.Operation:
        """Adds a step's time."""
        return _add(self._seconds, [[worker]], [tf.stack([waited, in_all])])

    def add_dropped(self, worker: tf.Tensor, count: tf.Tensor) -> tf.Operation:
        """Adds to the gradients that were dropped: a vector of their number."""
        return _add(self._dropped, [[worker]], count)

    def after_last_step(self) -> tf.Tensor:
        """Returns a tensor that exists once the last step has been counted.

        A function of several steps has them one after the other. An operation that
        needs nothing of the step before would run at once.
        """
        return self._seconds.read_value()

    def times_on_worker(
        self, scope: str
    ) -> tuple[tf.Tensor, tf.Tensor] | tuple[None, None]:
        """Adds the times when the worker has pulled and computed, if anybody asks."""
        if not self.records:
            return None, None
        with tf.name_scope(scope):
            return tf.timestamp(), tf.timestamp()

    def record(self, worker: tf.Tensor, times: Sequence[Any]) -> list[tf.Operation]:
        """Adds the `StepTimes` of a step, which `take_times` reads, if anybody asks."""
        if not self.records:
            return []
        row = [tf.cast(worker, tf.float64), *times]
        return [self._times.enqueue(tf.stack(row))]

    def take_times(self) -> np.ndarray:
        """Returns the times that were recorded and not taken yet, a row per step."""
        with tf.device(self.device):
            # Nobody else takes any, so this never waits.
            times: np.ndarray = self._times.dequeue_many(self._times.size()).numpy()
        return times

    def report(self) -> StalenessReport:
        """Returns the counts since it was made."""
        return StalenessReport(
            self._counts.numpy(), self._seconds.numpy(), self._dropped.numpy()
        )


def _add(variable: tf.Variable, indices: Any, added: Any) -> tf.Operation:
    # With a lock: two steps may add to the same element, and neither may be lost.
    return tf.raw_ops.ResourceScatterNdAdd(
        ref=variable.handle, indices=indices, updates=added, use_locking=True
    )
