"""The patches of compiled losses and metrics, which ask the current computation."""

import functools
from typing import Any

from tfdist import _tf
from tfdist.keras.computation import current_computation


def install() -> None:
    """Patches how Keras calls the losses and metrics that a model was compiled with."""
    _patch_losses(_tf.CompileLoss)
    _patch_metrics(_tf.MetricsList)


def _patch_losses(owner: Any) -> None:
    keras_build = owner.build

    @functools.wraps(keras_build)
    def build(self: Any, y_true: Any, y_pred: Any) -> None:
        keras_build(self, y_true, y_pred)
        self._flat_losses = [
            each._replace(loss=functools.partial(_loss, each.loss))
            for each in self._flat_losses
        ]

    owner.build = build


def _loss(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    computation = current_computation()
    if computation is None:
        return loss(y_true, y_pred, sample_weight)
    return computation.loss(loss, y_true, y_pred, sample_weight)


def _patch_metrics(owner: Any) -> None:
    keras_update = owner.update_state

    @functools.wraps(keras_update)
    def update_state(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        computation = current_computation()
        if computation is None:
            keras_update(self, y_true, y_pred, sample_weight)
            return
        for each in self.metrics:
            computation.update_metric(each, y_true, y_pred, sample_weight)

    owner.update_state = update_state
