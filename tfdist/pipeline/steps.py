"""The steps of a model in stages: what is traced into one graph."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.model_parallel.schedule import FORWARD, make_schedule
from tfdist.pipeline.added_losses import of_weights
from tfdist.pipeline.devices import beside_inputs, on
from tfdist.pipeline.microbatches import bounds, carried, joined
from tfdist.pipeline.objective import Objective
from tfdist.pipeline.order import in_order
from tfdist.pipeline.pipeline import Pipeline
from tfdist.pipeline.tasks import Tasks


class Steps:
    """Train, test and predict steps of a model.

    Args:
        model: The Keras model.
        pipeline: The model in stages.
        microbatches: The number of microbatches of a batch.
        schedule: The name of the schedule.
        recompute: Whether activations are computed again on the way back.
    """

    def __init__(
        self,
        model: Any,
        pipeline: Pipeline,
        microbatches: int,
        schedule: str,
        recompute: bool,
    ) -> None:
        self._model, self._pipeline = model, pipeline
        self._microbatches, self._schedule = microbatches, schedule
        self._recompute = recompute
        self._last = pipeline.stages[-1].device

    def train(self, batch: Any, rows: int) -> Any:
        """Trains on a batch, and returns the logs."""
        x, y, weight = _unpacked(batch)
        parts = bounds(rows, self._microbatches)
        with _tf.keeping_losses(self._model):
            tasks = self._tasks(x, parts, True)
            objective = Objective(self._model, self._packed, y, weight, parts)
            scale = self._model.optimizer.scale_loss(tf.ones(()))
            loss, predictions, of_tasks = self._forward_and_backward(
                tasks, objective, len(parts), scale
            )
        self._apply(of_tasks)
        return self._results(loss, rows, (x, y, weight), predictions)

    def test(self, batch: Any, rows: int) -> Any:
        """Evaluates a batch, and returns the logs."""
        x, y, weight = _unpacked(batch)
        parts = bounds(rows, self._microbatches)
        with _tf.keeping_losses(self._model):
            tasks = self._tasks(x, parts, False)
            outputs = self._forward(tasks, len(parts))
            objective = Objective(self._model, self._packed, y, weight, parts)
            with on(self._last):
                predictions = objective.predictions(outputs)
                loss = objective.whole(predictions)
                for stage in self._pipeline.stages:
                    tasks.added += of_weights(stage, 1.0)[0]
                loss = _sum([loss, *tasks.added])
        return self._results(loss, rows, (x, y, weight), predictions)

    def predict(self, batch: Any, rows: int) -> Any:
        """Returns the outputs for a batch."""
        x, _, _ = _unpacked(batch)
        parts = bounds(rows, self._microbatches)
        with _tf.keeping_losses(self._model):
            outputs = self._forward(self._tasks(x, parts, False), len(parts))
            with on(self._last):
                return self._packed([joined(e) for e in zip(*outputs, strict=True)])

    def _tasks(self, x: Any, parts: Sequence[tuple[int, int]], training: bool) -> Tasks:
        inputs = _tf.flat_inputs(self._pipeline.functional, x)
        return Tasks(self._pipeline, inputs, parts, training, self._recompute)

    def _packed(self, outputs: list[Any]) -> Any:
        structure = self._pipeline.functional.output
        packed = keras.tree.pack_sequence_as(structure, outputs)
        is_single = isinstance(packed, list | tuple) and len(packed) == 1
        return packed[0] if is_single else packed

    def _forward(self, tasks: Tasks, count: int) -> list[list[Any]]:
        for microbatch in range(count):
            for number in range(len(self._pipeline.stages)):
                tasks.forward(number, microbatch)
        return [self._at_the_end(tasks, each) for each in range(count)]

    def _at_the_end(self, tasks: Tasks, microbatch: int) -> list[Any]:
        with on(self._last):
            return [carried(each) for each in tasks.outputs(microbatch)]

    def _forward_and_backward(
        self, tasks: Tasks, objective: Objective, count: int, scale: Any
    ) -> tuple[Any, Any, Tasks]:
        stages = self._pipeline.stages
        added = self._regularize(tasks, scale)
        outputs: list[Any] = [None] * count
        whole: Any = None
        for number, task in in_order(make_schedule(self._schedule, len(stages), count)):
            microbatch = task.microbatch
            if task.kind == FORWARD:
                tasks.forward(number, microbatch)
                if number == len(stages) - 1:
                    outputs[microbatch] = self._at_the_end(tasks, microbatch)
                continue
            if number == len(stages) - 1:
                with on(self._last):
                    if self._schedule == "1f1b":
                        found = objective.gradients_of_part(
                            microbatch, outputs[microbatch], scale
                        )
                        tasks.add_gradients(microbatch, found)
                    elif whole is None:
                        whole = objective.gradients(outputs, scale)
                        for each, gradients in enumerate(whole[2]):
                            tasks.add_gradients(each, gradients)
            tasks.backward(number, microbatch, scale)
        with on(self._last):
            if whole is None:
                predictions = objective.predictions(outputs)
                whole = objective.whole(predictions), predictions
            return _sum([whole[0], *added, *tasks.added]), whole[1], tasks

    def _regularize(self, tasks: Tasks, scale: Any) -> list[Any]:
        losses = []
        for number, stage in enumerate(self._pipeline.stages):
            found, gradients = of_weights(stage, scale)
            tasks.start_from(number, gradients)
            losses += found
        return losses

    def _apply(self, tasks: Tasks) -> None:
        found = {
            id(weight): gradient
            for stage, sums in zip(self._pipeline.stages, tasks.sums, strict=True)
            for weight, gradient in zip(stage.weights, sums, strict=True)
        }
        weights = self._model.trainable_variables
        if not weights:
            return
        with beside_inputs():
            gradients = [found.get(id(each)) for each in weights]
            self._model.optimizer.apply(gradients, weights)

    def _results(self, loss: Any, rows: int, data: Any, predictions: Any) -> Any:
        with on(self._last):
            x, y, weight = data
            _tf.count_loss(self._model, loss, rows)
            return self._model.compute_metrics(x, y, predictions, sample_weight=weight)


def _unpacked(batch: Any) -> tuple[Any, Any, Any]:
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    return x, y, weight


def _sum(losses: Sequence[Any]) -> Any:
    return sum(tf.cast(each, losses[0].dtype) for each in losses)
