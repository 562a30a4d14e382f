"""The evaluator's schedule: it waits for checkpoints, evaluates each, and ends."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_config import Cluster, Task
from tfdist.cluster.startup import unreachable

_log = logging.getLogger("tfdist")

PATIENCE_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0
# TensorFlow warns of a throttle of exactly 0, which is the user's own.
_ALMOST_ZERO = 1e-9


@dataclass(eq=False)
class ChiefWatch:
    """Observes whether the chief responds.

    The chief may take `startup_timeout` seconds to start, `patience` to restart.
    """

    listens: Callable[[], bool]
    startup_timeout: float
    patience: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        self._seen = time.monotonic()
        self._was_seen = False

    @property
    def away(self) -> float:
        """The seconds for which the chief has not responded."""
        now = time.monotonic()
        if self.listens():
            self._seen, self._was_seen = now, True
        return now - self._seen

    @property
    def has_left(self) -> bool:
        """True if the chief has responded before, and does not now."""
        return self.away > 0 and self._was_seen

    @property
    def is_gone(self) -> bool:
        """True if the chief has not responded for too long to come back."""
        away = self.away
        return away >= (self.patience if self._was_seen else self.startup_timeout)


def watch_chief(cluster: Cluster, startup_timeout: float) -> ChiefWatch | None:
    """Returns a watch, or None if the chief is the only task, which has no server."""
    tasks = [task for task in cluster.tasks() if task.job != "evaluator"]
    if len(tasks) == 1:
        return None
    chief = Task("chief" if cluster.chief else "worker", 0)
    address = {chief: cluster.address(chief)}
    return ChiefWatch(lambda: not unreachable(address), startup_timeout)


@dataclass(eq=False)
class RetryingEvaluator:
    """Evaluates the newest checkpoint, and starts over if it is deleted meanwhile.

    The chief deletes its oldest checkpoints. A slow evaluator may still be reading one.
    """

    evaluator: Any
    estimator: Any

    def evaluate_and_export(self) -> Any:
        """Returns the result of the evaluation and those of the exports.

        An evaluation that fails while its checkpoint is still there raises its own error.
        """
        while True:
            newest = self.estimator.latest_checkpoint()
            try:
                return self.evaluator.evaluate_and_export()
            except (ValueError, tf.errors.OpError):
                if newest is None or tf.io.gfile.exists(f"{newest}.index"):
                    raise
                _log.warning(
                    "%s was deleted during its evaluation because newer checkpoints "
                    "were written: evaluating the newest one. To keep more "
                    "checkpoints, increase RunConfig(keep_checkpoint_max=...)",
                    newest,
                )


@dataclass(eq=False)
class EvaluationSchedule:
    """Decides when the next evaluation begins, and when the last one has ended.

    TensorFlow's evaluator exits at `max_steps`. It waits forever if there is no
    `max_steps`, or if a hook stops the training early. It also sleeps through the end of
    the training for `EvalSpec.start_delay_secs` or `throttle_secs`. Here these delays
    hold while the chief trains. The last checkpoint is evaluated at once.

    Args:
        newest: Returns the path of the newest checkpoint, or None.
        max_steps: The number of steps after which the training is over, or None.
        watch: Observes the chief; None if the chief has no server.

    Attributes:
        evaluated: The path of the checkpoint that was evaluated last.
    """

    newest: Callable[[], str | None]
    max_steps: int | None
    watch: ChiefWatch | None

    def __post_init__(self) -> None:
        self.evaluated: str | None = None

    def should_continue(self) -> bool:
        """Returns True to evaluate another checkpoint or to wait for one."""
        if self.watch is None or not self.watch.is_gone or self._is_behind():
            return True
        _log.warning(
            "the evaluator exits: no response from the chief for %.0f s, and its last "
            "checkpoint has been evaluated",
            self.watch.away,
        )
        return False

    def pause(self, seconds: float) -> None:
        """Sleeps until the time is over, or the training is."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_over():
            time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))

    def _is_behind(self) -> bool:
        return self.newest() not in (None, self.evaluated)

    def _is_over(self) -> bool:
        if self._has_all_steps():
            return True
        if self.watch is None:
            return False
        # A chief that restarts costs one evaluation that comes early.
        return self.watch.has_left if self._is_behind() else self.watch.is_gone

    def _has_all_steps(self) -> bool:
        newest = self.newest()
        if newest is None or not self.max_steps:
            return False
        try:
            step = tf.train.load_variable(newest, "global_step")
        except (ValueError, tf.errors.OpError):
            return False  # The chief has deleted it, and has written another one.
        return bool(step >= self.max_steps)

    @contextlib.contextmanager
    def told_to_end(self) -> Iterator[None]:
        """Makes SIGTERM an error if it leaves the last checkpoint without evaluation."""
        is_free = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if not is_free:
            yield
            return
        signal.signal(signal.SIGTERM, self._end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end(self, *_: object) -> None:
        newest = self.newest()
        is_over = self.watch is None or self.watch.away > 0
        if is_over and newest is not None and newest == self.evaluated:
            raise SystemExit(0)
        if is_over:
            _log.error(
                "the evaluator was told to end (SIGTERM), but %s. The launcher allows "
                "--straggler_timeout seconds after the chief's end: increase it, or "
                "evaluate fewer steps (EvalSpec)",
                f"has not evaluated {newest}" if newest else "has found no checkpoint",
            )
            raise SystemExit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def executor_of(base: Any, watch: ChiefWatch | None = None) -> Any:
    """Derives the executor of an evaluator from the one of tensorflow-estimator.

    Without a watch it stops at `max_steps` only.
    """

    class CheckpointEvaluator(base):
        """Evaluates each checkpoint of the chief, until the chief has exited."""

        def _start_continuous_evaluation(self) -> None:
            newest, steps = self.estimator.latest_checkpoint, self._train_spec.max_steps
            self._schedule = EvaluationSchedule(newest, steps, watch)
            spec = self._eval_spec
            with self._schedule.told_to_end():
                self._schedule.pause(spec.start_delay_secs)
                self._eval_spec: Any = spec._replace(start_delay_secs=0)
                super()._start_continuous_evaluation()

        def _execute_evaluator_once(
            self, evaluator: Any, continuous_eval_listener: Any, throttle_secs: float
        ) -> tuple[Any, bool]:
            if not self._schedule.should_continue():
                return None, True
            began = time.monotonic()
            result, should_stop = super()._execute_evaluator_once(
                RetryingEvaluator(evaluator, self.estimator),
                continuous_eval_listener,
                min(throttle_secs, _ALMOST_ZERO),
            )
            if result is not None and result.checkpoint_path:
                self._schedule.evaluated = result.checkpoint_path
            if not should_stop:
                self._schedule.pause(throttle_secs - (time.monotonic() - began))
            return result, should_stop

    return CheckpointEvaluator
