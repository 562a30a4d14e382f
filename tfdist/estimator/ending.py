"""When the evaluator has nothing more to wait for."""

import logging
import time
from collections.abc import Callable
from typing import Any

from tf_config import Cluster, Task
from tfdist.cluster.startup import unreachable

_log = logging.getLogger("tfdist")

PATIENCE_SECONDS = 60.0


class ChiefWatch:
    """Ends a continuous evaluation when the chief has gone.

    TensorFlow's evaluator ends at `max_steps`, and else waits for ever: after a hook
    that stops early, or where there is no `max_steps`. It has the two methods that
    tensorflow-estimator calls before and after each evaluation.

    Args:
        listens: Whether the chief can be reached now.
        startup_timeout: How long the chief may take to be there, in seconds.
        patience: How long it may be away, if it is started again, in seconds.
    """

    def __init__(
        self,
        listens: Callable[[], bool],
        startup_timeout: float,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._listens = listens
        self._patience = startup_timeout
        self._patience_later = patience
        self._seen = time.monotonic()
        self._has_evaluated = True

    def before_eval(self) -> bool:
        """Whether to go on."""
        if self._listens():
            self._seen, self._patience = time.monotonic(), self._patience_later
        away = time.monotonic() - self._seen
        if self._has_evaluated or away < self._patience:
            return True
        _log.warning(
            "the evaluator ends: the chief does not answer since %.0f s, and its last "
            "checkpoint has been evaluated",
            away,
        )
        return False

    def after_eval(self, result: Any) -> bool:
        """Takes note of whether there was a checkpoint to evaluate."""
        self._has_evaluated = bool(result.metrics)
        return True


def watch_chief(cluster: Cluster, startup_timeout: float) -> ChiefWatch | None:
    """Returns a watch; None for a chief that has no server, since it is alone."""
    tasks = [task for task in cluster.tasks() if task.job != "evaluator"]
    if len(tasks) == 1:
        return None
    chief = Task("chief" if cluster.chief else "worker", 0)
    address = {chief: cluster.address(chief)}
    return ChiefWatch(lambda: not unreachable(address), startup_timeout)
