"""Counts the training steps that each worker runs, as proof of where steps ran."""

from typing import Any

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.cluster.presence import Presence
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.placement.report import WorkerReport


class StepCounter:
    """One counter per worker."""

    def __init__(self, strategy: PsStrategy, presence: Presence) -> None:
        self._presence = presence
        self._replicas = strategy.replicas
        self._num_workers = strategy.num_workers
        with strategy.scope():
            # A per-worker variable lives on the worker itself: only steps that run
            # there can add to it, so the chief cannot miscount.
            self._steps = tf.Variable(
                0, dtype=tf.int64, trainable=False, per_worker_variable=True
            )
        self._has_counted = False

    def count(self) -> None:
        """Adds one to the count of the worker that runs the current step."""
        self._has_counted = True
        self._steps.assign_add(1)

    def report(self) -> WorkerReport:
        """Asks every worker for its count.

        Raises:
            tf.errors.OpError: While a worker is down that must not be.
        """
        # A worker creates its counter on first use: before, there is nothing to read.
        if not self._has_counted:
            return WorkerReport((0,) * self._num_workers)
        steps = [0] * self._num_workers
        for replica, count in zip(self._replicas, self.counts(), strict=True):
            steps[replica.worker] += count
        return WorkerReport(tuple(steps))

    def counts(self) -> tuple[int, ...]:
        """Asks every replica for its count; see `report`."""
        values = _tf.values_per_worker(self._steps)
        workers = [each.worker for each in self._replicas]
        return tuple(map(self._count, workers, values))

    def _count(self, index: int, value: Any) -> int:
        if tf_config.Task("worker", index) in self._presence.away:
            return 0
        try:
            return int(value.get())
        except tf.errors.AbortedError:
            # It was started again, and no step has run there that would have told so.
            return 0
        except tf.errors.OpError:
            # It may have gone a moment ago.
            if self._presence.is_elastic:
                return 0
            raise
