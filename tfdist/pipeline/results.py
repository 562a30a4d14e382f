"""What follows the tasks of a step: the update, the metrics, and the logs."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.computation import Computation, computing
from tfdist.pipeline.devices import beside_inputs, on
from tfdist.pipeline.pipeline import Pipeline


def in_structure(pipeline: Pipeline, outputs: list[Any]) -> Any:
    """Returns the model's output, from the tensors of its graph."""
    structure = pipeline.functional.output
    packed = keras.tree.pack_sequence_as(structure, outputs)
    is_single = isinstance(packed, list | tuple) and len(packed) == 1
    return packed[0] if is_single else packed


def total(losses: Sequence[Any]) -> Any:
    """Returns the sum of losses, in the dtype of the first."""
    return sum(tf.cast(each, losses[0].dtype) for each in losses)


def update(
    model: Any, pipeline: Pipeline, gradients: Mapping[int, Sequence[Any]]
) -> bool:
    """Runs the optimizer once. Returns whether there was any weight to update.

    The gradients are, of some stages, those of their weights.
    """
    found = {
        id(weight): gradient
        for stage, of_stage in gradients.items()
        for weight, gradient in zip(
            pipeline.stages[stage].weights, of_stage, strict=True
        )
    }
    is_whole = len(gradients) == len(pipeline.stages)
    weights = [e for e in model.trainable_variables if is_whole or id(e) in found]
    if weights:
        # There is one replica: TensorFlow's sum over replicas would gather all gradients.
        with beside_inputs(), computing(Computation()):
            model.optimizer.apply([found.get(id(each)) for each in weights], weights)
    return bool(weights)


def counted(
    model: Any, pipeline: Pipeline, loss: Any, rows: int, batch: Any, predictions: Any
) -> Any:
    """Counts a batch in the model's metrics, and returns the logs."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    with on(pipeline.stages[-1].device):
        _tf.count_loss(model, loss, rows)
        return model.compute_metrics(x, y, predictions, sample_weight=weight)
