"""An evaluator that is slower than the chief, which deletes its oldest checkpoints."""

import functools
import logging
from typing import Any

import tensorflow as tf

from tfdist.estimator import _tf

_log = logging.getLogger("tfdist")


def install() -> None:
    """Has an evaluator take the next checkpoint where one is gone that it began with."""
    owner = _tf.module("training")._TrainingExecutor._Evaluator
    evaluate_and_export = owner.evaluate_and_export

    @functools.wraps(evaluate_and_export)
    def evaluate_what_is_there(self: Any) -> Any:
        while True:
            newest = self._estimator.latest_checkpoint()
            try:
                return evaluate_and_export(self)
            except (ValueError, tf.errors.OpError):
                if newest is None or tf.io.gfile.exists(f"{newest}.index"):
                    raise
                _log.warning(
                    "%s was deleted while it was read, since newer ones were written: "
                    "evaluating the newest. RunConfig(keep_checkpoint_max=...) keeps "
                    "more of them",
                    newest,
                )

    owner.evaluate_and_export = evaluate_what_is_there
