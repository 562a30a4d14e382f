"""When an evaluator stops waiting for checkpoints."""

import logging
import time
from collections.abc import Callable

from tf_config import Cluster, Task
from tfdist.cluster.startup import unreachable

_log = logging.getLogger("tfdist")

PATIENCE_SECONDS = 60.0


class ChiefWatch:
    """Stops a continuous evaluation after the chief has exited.

    TensorFlow's evaluator exits at `max_steps`. It waits forever if there is no
    `max_steps`, or if a hook stops the training early. The chief may take `startup_timeout`
    seconds to start, and `patience` seconds to restart.
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

    def should_continue(self) -> bool:
        """Returns whether to wait for another checkpoint."""
        if self._listens():
            self._seen, self._patience = time.monotonic(), self._patience_later
        away = time.monotonic() - self._seen
        # The chief may have written another checkpoint during the last evaluation.
        if self._has_evaluated or away < self._patience:
            return True
        _log.warning(
            "the evaluator exits: no response from the chief for %.0f s, and its last "
            "checkpoint has been evaluated",
            away,
        )
        return False

    def evaluated(self, found: bool) -> None:
        """Notes whether the last evaluation found a new checkpoint."""
        self._has_evaluated = found


def watch_chief(cluster: Cluster, startup_timeout: float) -> ChiefWatch | None:
    """Returns a watch, or None if the chief is the only task, which has no server."""
    tasks = [task for task in cluster.tasks() if task.job != "evaluator"]
    if len(tasks) == 1:
        return None
    chief = Task("chief" if cluster.chief else "worker", 0)
    address = {chief: cluster.address(chief)}
    return ChiefWatch(lambda: not unreachable(address), startup_timeout)
