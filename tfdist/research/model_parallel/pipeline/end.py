"""The end of a step: the loss and its gradients, the update, the metrics and the logs."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.keras.computation import Computation, computing
from tfdist.research.model_parallel.pipeline.devices import beside_inputs, on
from tfdist.research.model_parallel.pipeline.microbatches import carried
from tfdist.research.model_parallel.pipeline.objective import Objective
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline
from tfdist.research.model_parallel.pipeline.tasks import Tasks


class End:
    """The computations of a step's last stage besides its tasks.

    With `by_part` each microbatch goes backward from its own loss, before that of the whole
    batch is known. The loss is multiplied by the scale against underflow.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tasks: Tasks,
        objective: Objective,
        count: int,
        by_part: bool,
        scale: tf.Tensor | float,
    ) -> None:
        self._ids, self._device = pipeline.outputs, pipeline.stages[-1].device
        # The loss of a microbatch is computed where its outputs are.
        last = len(pipeline.stages) - 1
        self._devices = [
            tasks.device(last, each) if by_part else self._device
            for each in range(count)
        ]
        self._tasks, self._objective = tasks, objective
        self._by_part, self._scale = by_part, scale
        self._outputs: list[Nest] = [None] * count
        self._whole: Any = None

    def after_forward(self, microbatch: int) -> None:
        """Takes the outputs of a microbatch."""
        self._outputs[microbatch] = at_the_end(
            self._tasks, self._ids, self._devices[microbatch], microbatch
        )

    def before_backward(self, microbatch: int) -> None:
        """Adds the gradients of a microbatch's outputs to those of the tasks."""
        with on(self._devices[microbatch]):
            if self._by_part:
                found = self._objective.gradients_of_part(
                    microbatch, self._outputs[microbatch], self._scale
                )
                self._tasks.add_gradients(microbatch, self._ids, found)
            # Once: gpipe has the outputs of all microbatches before it goes backward.
            elif self._whole is None:
                *self._whole, rows = self._objective.gradients(
                    self._outputs, self._scale
                )
                for number, each in enumerate(rows):
                    self._tasks.add_gradients(number, self._ids, each)

    def result(self) -> tuple[Any, Any]:
        """Returns the loss of the batch and the model's output, once all have passed."""
        if self._whole is None:
            with on(self._device):
                predictions = self._objective.predictions(self._outputs)
                # Also where microbatches had losses of their own: metrics count this one.
                self._whole = self._objective.whole(predictions), predictions
        loss, predictions = self._whole
        return loss, predictions


def at_the_end(
    tasks: Tasks, ids: Sequence[int], device: str, microbatch: int
) -> list[Any]:
    """Returns the outputs of a microbatch on the device of the last stage."""
    with on(device):
        return [carried(each) for each in tasks.values(microbatch, ids)]


def total(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of losses, in the dtype of the first."""
    return sum(tf.cast(each, losses[0].dtype) for each in losses)


def update(
    model: keras.Model, pipeline: Pipeline, gradients: Mapping[int, Sequence[Any]]
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
    model: keras.Model,
    pipeline: Pipeline,
    loss: tf.Tensor,
    rows: int,
    batch: Nest,
    predictions: Nest,
) -> Any:
    """Counts a batch in the model's metrics, and returns the logs."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    with on(pipeline.stages[-1].device):
        _tf.count_loss(model, loss, rows)
        return model.compute_metrics(x, y, predictions, sample_weight=weight)
