"""Adds to the logs of each epoch how stale its steps were, and how long they waited."""

from typing import Any

import keras

from tfdist._support.types import Logs
from tfdist.consistency.policy import Consistency
from tfdist.consistency.staleness import StalenessReport
from tfdist.consistency.synchronous import Synchronous


class StalenessLogs(keras.callbacks.Callback):
    """Adds `staleness`, `max_staleness` and `waiting_share` to the logs of each epoch.

    Under `Synchronous`, also the number of gradients that were `dropped`; and without
    backup workers, no `waiting_share`.
    """

    # It does not look at batches.
    follows_strides = True

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy
        self._before: StalenessReport | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Remembers the earlier counts."""
        self._before = self._strategy.gates.report()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Adds the counts of the epoch."""
        # Without a number of batches, nobody takes the end of an epoch's steps.
        self._strategy.fit_driver.is_within_epoch = False
        counted = self._strategy.gates.report()
        self._strategy.gates.write_timeline()
        if counted is None or logs is None:
            return
        if self._before is not None:
            counted = counted.since(self._before)
        if counted.steps:
            logs["staleness"] = counted.mean
            self._strategy.fit_driver.newest_staleness = counted.mean
            logs["max_staleness"] = counted.maximum
        policy = self._strategy.consistency
        # Its steps wait for the end of their round, on the ps, where nobody times it.
        if counted.steps and not _is_plain_round(policy):
            logs["waiting_share"] = counted.waiting_share
        if isinstance(policy, Synchronous):
            logs["dropped"] = int(counted.dropped.sum())


def measure_staleness(strategy: Any, arguments: dict[str, Any]) -> None:
    """Adds the staleness to the logs of `fit`, before its other callbacks see them."""
    callbacks = arguments.get("callbacks")
    ours = StalenessLogs(strategy)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = [
            ours,
            *(
                each
                for each in callbacks.callbacks
                if not isinstance(each, StalenessLogs)
            ),
        ]
    else:
        arguments["callbacks"] = [ours, *keras.tree.flatten(callbacks or [])]


def _is_plain_round(policy: Consistency) -> bool:
    """Returns True for rounds without backup workers, in which no wait is timed."""
    return isinstance(policy, Synchronous) and policy.backup_workers == 0
