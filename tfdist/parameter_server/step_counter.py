"""Counts the training steps that each worker runs, as proof of where steps ran."""

from typing import Any

import tensorflow as tf

from tfdist.placement.report import WorkerReport


class StepCounter:
    """One counter per worker.

    Args:
        strategy: The `ParameterServerStrategy` whose workers count.
    """

    def __init__(self, strategy: Any) -> None:
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
            tf.errors.OpError: While a worker is down.
        """
        if not self._has_counted:
            return WorkerReport((0,) * self._num_workers)
        return WorkerReport(tuple(int(steps) for steps in self._steps.read_all()))
