"""Losses that are none of the model's outputs: of activities, and of weights."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.research.model_parallel.pipeline.devices import on
from tfdist.research.model_parallel.pipeline.pipeline import Stage


@contextlib.contextmanager
def scaled_activities(operation: keras.Operation, share: float) -> Iterator[None]:
    """Weighs the losses of activity regularizers by a microbatch's share of rows.

    Layers' losses are weighted by that share, as a mean over examples must be. Keras
    added sums over examples in older versions; they are divided by the share here.
    """
    given = []
    if share != 1 and isinstance(operation, keras.Layer) and _activities_are_sums():
        within = getattr(operation, "_flatten_layers", lambda: [operation])()
        given = [
            (e, r) for e in within if (r := getattr(e, "activity_regularizer", None))
        ]
    for layer, regularizer in given:
        layer.activity_regularizer = _Divided(regularizer, share)
    try:
        yield
    finally:
        for layer, regularizer in given:
            layer.activity_regularizer = regularizer


@functools.cache
def _activities_are_sums() -> bool:
    """Returns True if this Keras adds a regularizer's sum of values, not the mean."""
    # In a scope of its own, or the loss would count in that of a replica's copies.
    with tf.init_scope(), keras.StatelessScope(collect_losses=True) as scope:
        keras.layers.ActivityRegularization(l2=1.0, name="of_two_rows")(tf.ones((2, 1)))
        return float(scope.losses[0]) > 1.5


class _Divided(keras.regularizers.Regularizer):
    def __init__(self, regularizer: Any, share: float) -> None:
        self._regularizer, self._share = regularizer, share

    def __call__(self, x: Any) -> Any:
        value = self._regularizer(x)
        return value / tf.cast(self._share, value.dtype)


def of_weights(stage: Stage, scale: tf.Tensor | float) -> tuple[list[Any], list[Any]]:
    """Returns the losses of weight regularizers, and their gradients by the weights.

    Both are computed on the stage's device; the gradients are multiplied by the scale.
    """
    weights = stage.weights
    if not any(each.regularizer for each in weights):
        return [], [None] * len(weights)
    with on(stage.device):
        with tf.GradientTape() as tape:
            losses = [w.regularizer(w) for w in weights if w.regularizer]
        scales = [tf.cast(scale, each.dtype) for each in losses]
        return losses, tape.gradient(losses, weights, output_gradients=scales)
