"""Evaluates the next checkpoint when the current one is deleted during the evaluation.

The chief deletes its oldest checkpoints. A slow evaluator may still be reading one.
"""

import logging
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tfdist")


class RetryingEvaluator:
    """Evaluates the newest checkpoint, and starts over if it is deleted meanwhile."""

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
