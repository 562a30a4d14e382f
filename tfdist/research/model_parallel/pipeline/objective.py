"""The loss of a batch in microbatches: of all of them together, or of each."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.keras.computation import Computation, computing
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.pipeline.microbatches import joined, part_of
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline
from tfdist.synchronous.replica.separable import is_separable

_WAY_OUT = 'Use schedule="gpipe", which computes the loss of the whole batch'
_MEANS = ("sum_over_batch_size", "mean")


class Objective:
    """The compiled loss of a model on one batch, in microbatches of these rows."""

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        batch: Nest,
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        self._loss, self._pipeline = _tf.compiled_loss(model), pipeline
        _, self._y, self._weight = keras.utils.unpack_x_y_sample_weight(batch)
        self._bounds = bounds

    def predictions(self, outputs: Sequence[Sequence[Nest]]) -> Any:
        """Returns the model's output for the batch, from those of each microbatch."""
        whole = [joined(parts) for parts in zip(*outputs, strict=True)]
        return self._pipeline.in_structure(whole)

    def whole(self, predictions: Nest) -> Nest:
        """Returns the loss of the batch, and counts it in the model's loss metrics."""
        if self._loss is None:
            return tf.zeros(())
        return self._loss(self._y, predictions, self._weight)

    def gradients(
        self, outputs: Sequence[Sequence[Nest]], scale: tf.Tensor | float
    ) -> tuple[Any, Any, list[list[Any]]]:
        """Returns the loss, the model's output, and for each microbatch its gradients."""
        flat = [each for parts in outputs for each in parts]
        with tf.GradientTape() as tape:
            _watch(tape, flat)
            predictions = self.predictions(outputs)
            loss = self.whole(predictions)
        found = tape.gradient(loss, flat, output_gradients=tf.cast(scale, loss.dtype))
        size = len(outputs[0])
        rows = [found[i : i + size] for i in range(0, len(found), size)]
        return loss, predictions, rows

    def gradients_of_part(
        self, number: int, outputs: Sequence[Nest], scale: tf.Tensor | float
    ) -> list[Any]:
        """Returns the gradients of the loss of the batch by a microbatch's outputs.

        Raises:
            PipelineError: If the loss is not a sum over examples.
        """
        if self._loss is None:
            return [None] * len(outputs)
        start, end = self._bounds[number]
        y, weight = part_of((self._y, self._weight), start, end)
        share = (end - start) / self._bounds[-1][1]
        # In a stateless scope, for the loss of the whole batch is counted once.
        with tf.GradientTape() as tape:
            _watch(tape, outputs)
            with keras.StatelessScope(), computing(_PartOfBatch(share)):
                predictions = self._pipeline.in_structure(list(outputs))
                loss = self._loss(y, predictions, weight)
        scale = tf.cast(scale, loss.dtype)
        return list(tape.gradient(loss, list(outputs), output_gradients=scale))


class _PartOfBatch(Computation):
    """Weighs the losses of a microbatch so that they add up to those of the batch."""

    def __init__(self, share: float) -> None:
        self._share = share

    def mask_weights(
        self, weigh: Callable[[str], Any], mask: tf.Tensor | None, by: str
    ) -> Any:
        """Refuses a mask: the loss divides by how much is not masked in the batch."""
        if mask is None:
            return weigh(by)
        raise PipelineError(
            "the model's output has a mask, and its loss is a mean over what the whole "
            f'batch does not mask; schedule="1f1b" goes backward before that is known. '
            f"{_WAY_OUT}"
        )

    def loss(
        self, loss: keras.Loss, y_true: Nest, y_pred: Nest, sample_weight: Nest
    ) -> Nest:
        """Returns the microbatch's share of the loss of the batch."""
        reduction = getattr(loss, "reduction", None)
        is_mean = reduction in _MEANS or (
            reduction == "mean_with_sample_weight" and sample_weight is None
        )
        if not (is_separable(loss, y_pred) and (is_mean or reduction == "sum")):
            raise PipelineError(
                f"the loss {getattr(loss, 'name', loss)!r} (reduction={reduction!r}) of an "
                f"output of shape {y_pred.shape} is not known to be a sum or a mean over "
                'examples, and schedule="1f1b" goes backward before all outputs of the '
                f"batch are known. {_WAY_OUT}; or use one of Keras's own losses by example"
            )
        value = loss(y_true, y_pred, sample_weight)
        return value * tf.cast(self._share, value.dtype) if is_mean else value


def _watch(tape: tf.GradientTape, tensors: Sequence[tf.Tensor]) -> None:
    for each in tensors:
        if each.dtype.is_floating:
            tape.watch(each)
