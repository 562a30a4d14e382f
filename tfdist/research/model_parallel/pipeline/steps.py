"""The steps of a model in stages: what is traced into one graph."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.research.model_parallel.pipeline.added_losses import of_weights
from tfdist.research.model_parallel.pipeline.devices import on
from tfdist.research.model_parallel.pipeline.end import (
    End,
    at_the_end,
    counted,
    total,
    update,
)
from tfdist.research.model_parallel.pipeline.microbatches import (
    bounds,
    joined,
    replicas_of,
)
from tfdist.research.model_parallel.pipeline.objective import Objective
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline
from tfdist.research.model_parallel.pipeline.tasks import Tasks
from tfdist.research.model_parallel.schedule import FORWARD, make_schedule


class Steps:
    """Train, test and predict steps of a model in stages."""

    def __init__(
        self, model: keras.Model, pipeline: Pipeline, strategy: tf.distribute.Strategy
    ) -> None:
        self._model, self._pipeline, self._strategy = model, pipeline, strategy
        self._last = pipeline.stages[-1].device
        self._replicas = len(pipeline.stages[0].devices)

    def train(self, batch: Nest, rows: int) -> Any:
        """Trains on a batch, and returns the logs."""
        parts = self._bounds(rows)
        with _tf.keeping_losses(self._model):
            tasks = self._tasks(batch, parts, True)
            objective = Objective(self._model, self._pipeline, batch, parts)
            # Against underflow in float16; 1 for optimizers that scale nothing.
            scale = self._model.optimizer.scale_loss(tf.ones(()))
            loss, predictions = self._forward_and_backward(
                tasks, objective, len(parts), scale
            )
            tasks.assign_changes()
            stages = range(len(self._pipeline.stages))
            sums = {number: tasks.sums(number) for number in stages}
        update(self._model, self._pipeline, sums)
        return counted(self._model, self._pipeline, loss, rows, batch, predictions)

    def test(self, batch: Nest, rows: int) -> Any:
        """Evaluates a batch, and returns the logs."""
        parts = self._bounds(rows)
        with _tf.keeping_losses(self._model):
            tasks = self._tasks(batch, parts, False)
            outputs = self._forward(tasks, len(parts))
            objective = Objective(self._model, self._pipeline, batch, parts)
            with on(self._last):
                predictions = objective.predictions(outputs)
                loss = objective.whole(predictions)
                for stage in self._pipeline.stages:
                    tasks.added += of_weights(stage, 1.0)[0]
                loss = total([loss, *tasks.added])
        return counted(self._model, self._pipeline, loss, rows, batch, predictions)

    def predict(self, batch: Nest, rows: int) -> Any:
        """Returns the outputs for a batch."""
        parts = self._bounds(rows)
        with _tf.keeping_losses(self._model):
            outputs = self._forward(self._tasks(batch, parts, False), len(parts))
            with on(self._last):
                whole = [joined(each) for each in zip(*outputs, strict=True)]
                return self._pipeline.in_structure(whole)

    def _tasks(
        self, batch: Nest, parts: Sequence[tuple[int, int]], training: bool
    ) -> Tasks:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = _tf.flat_inputs(self._pipeline.functional, x)
        recompute = self._strategy.recompute
        of = replicas_of(len(parts), self._replicas)
        return Tasks(self._pipeline, inputs, parts, training, recompute, of)

    def _bounds(self, rows: int) -> list[tuple[int, int]]:
        return bounds(rows, self._replicas * self._strategy.microbatches)

    def _forward(self, tasks: Tasks, count: int) -> list[list[Nest]]:
        for microbatch in range(count):
            for number in range(len(self._pipeline.stages)):
                tasks.forward(number, microbatch)
        tasks.assign_changes()
        ids = self._pipeline.outputs
        return [at_the_end(tasks, ids, self._last, each) for each in range(count)]

    def _forward_and_backward(
        self, tasks: Tasks, objective: Objective, count: int, scale: tf.Tensor | float
    ) -> tuple[Any, Any]:
        last = len(self._pipeline.stages) - 1
        added = self._regularize(tasks, scale)
        by_part = self._strategy.schedule == "1f1b"
        end = End(self._pipeline, tasks, objective, count, by_part, scale)
        for number, kind, microbatch in self._order(count, by_part):
            if kind == FORWARD:
                tasks.forward(number, microbatch)
                if number == last:
                    end.after_forward(microbatch)
            else:
                if number == last:
                    end.before_backward(microbatch)
                tasks.backward(number, microbatch, scale)
        loss, predictions = end.result()
        with on(self._last):
            return total([loss, *added, *tasks.added]), predictions

    def _order(self, count: int, by_part: bool) -> list[tuple[int, str, int]]:
        """Returns stages, kinds and microbatches of all tasks, each after what it needs."""
        of = replicas_of(count, self._replicas)
        order: list[tuple[int, str, int]] = []
        for replica in sorted(set(of)):
            stages, own = len(self._pipeline.stages), of.count(replica)
            schedule = make_schedule(self._strategy.schedule, stages, own)
            order += [
                (number, task.kind, of.index(replica) + task.microbatch)
                for number, task in schedule.in_order()
            ]
        # The loss of the whole batch needs the outputs of all replicas.
        return order if by_part else sorted(order, key=lambda each: each[1] != FORWARD)

    def _regularize(self, tasks: Tasks, scale: tf.Tensor | float) -> list[Any]:
        losses = []
        for number, stage in enumerate(self._pipeline.stages):
            found, gradients = of_weights(stage, scale)
            tasks.start_from(number, gradients)
            losses += found
        return losses
