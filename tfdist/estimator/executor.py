"""Runs an evaluator that stops when its chief has exited."""

from typing import Any

from tfdist.estimator.ending import ChiefWatch
from tfdist.estimator.evaluation import RetryingEvaluator


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
