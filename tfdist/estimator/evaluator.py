"""How an evaluator waits for checkpoints, evaluates each, and stops."""

import logging
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

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


class RetryingEvaluator:
    """Evaluates the newest checkpoint, and starts over if it is deleted meanwhile.

    The chief deletes its oldest checkpoints. A slow evaluator may still be reading one.
    """

    def __init__(self, evaluator: Any, estimator: Any) -> None:
        self._evaluator = evaluator
        self._estimator = estimator

    def evaluate_and_export(self) -> Any:
        """Returns the result of the evaluation and those of the exports.

        An evaluation that fails while its checkpoint is still there raises its own error.
        """
        while True:
            newest = self._estimator.latest_checkpoint()
            try:
                return self._evaluator.evaluate_and_export()
            except (ValueError, tf.errors.OpError):
                if newest is None or tf.io.gfile.exists(f"{newest}.index"):
                    raise
                _log.warning(
                    "%s was deleted during its evaluation because newer checkpoints "
                    "were written: evaluating the newest one. To keep more "
                    "checkpoints, increase RunConfig(keep_checkpoint_max=...)",
                    newest,
                )


def executor_of(base: Any, watch: ChiefWatch | None = None) -> Any:
    """Derives the executor of an evaluator from the one of tensorflow-estimator.

    Without a watch it stops at `max_steps` only.
    """

    class Executor(base):
        """Evaluates each checkpoint of the chief, until the chief has exited."""

        def _execute_evaluator_once(
            self, evaluator: Any, continuous_eval_listener: Any, throttle_secs: int
        ) -> tuple[Any, bool]:
            if watch is not None and not watch.should_continue():
                return None, True
            result, should_stop = super()._execute_evaluator_once(
                RetryingEvaluator(evaluator, self.estimator),
                continuous_eval_listener,
                throttle_secs,
            )
            if watch is not None:
                watch.evaluated(bool(result.metrics))
            return result, should_stop

    return Executor
