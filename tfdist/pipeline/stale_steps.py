"""Train steps in which no stage waits for another: what is traced into one graph.

A stage computes forward what an earlier one has left for it some steps ago, and backward a
batch whose gradient a later one has left for it. It computes that batch's activations
again, with the weights that it has by now, so that a gradient is that of these weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.model_parallel.schedule import FORWARD, Task, make_schedule
from tfdist.pipeline.added_losses import of_weights
from tfdist.pipeline.devices import on
from tfdist.pipeline.end import End
from tfdist.pipeline.links import Links
from tfdist.pipeline.microbatches import bounds, part_of
from tfdist.pipeline.objective import Objective
from tfdist.pipeline.pipeline import Pipeline
from tfdist.pipeline.results import counted, in_structure, total, update
from tfdist.pipeline.stage_function import StageFunction
from tfdist.pipeline.stale_schedule import Active
from tfdist.pipeline.tasks import Tasks

ByMicrobatch = dict[int, list[Any]]
"""Of tensors, by identity, the value of each microbatch."""


class StaleSteps:
    """Train steps on batches of one form.

    Args:
        model: The Keras model.
        pipeline: The model in stages.
        microbatches: The number of microbatches of a batch.
        schedule: The name of the schedule.
        lag: How many steps later a result is used by another stage: 1 or 2.
        rows: The rows of a batch.

    References:
        Huo, Gu and Huang, "Training neural networks using features replay", NeurIPS 2018,
        algorithm 1, here with a queue of batches for each stage.
    """

    def __init__(
        self,
        model: Any,
        pipeline: Pipeline,
        microbatches: int,
        schedule: str,
        lag: int,
        rows: int,
    ) -> None:
        self._model, self._pipeline = model, pipeline
        self._lag, self._parts = lag, bounds(rows, microbatches)
        self._last = len(pipeline.stages) - 1
        self._by_part = schedule == "1f1b"
        self._tasks_of = make_schedule(
            schedule, self._last + 1, len(self._parts)
        ).stages
        self._links = Links(pipeline, lag)
        self._batch: Any = None
        self._logs: Any = None
        # How many seeds each microbatch of a stage draws.
        self._draws: dict[int, list[int]] = {}
        self._functions: dict[Any, StageFunction] = {}

    def step(self, active: Active, batch: Any = None) -> Any:
        """Adds a step, and returns the logs of the batch that reaches the last stage.

        Args:
            active: The stages that have something to do.
            batch: The next batch, if stage 0 has one to compute.
        """
        links = self._links
        first = [] if batch is None else self._needed_of(batch, 0)
        with _tf.keeping_losses(self._model):
            # Everything is taken before anything is put, which is for later steps.
            given = {
                stage: links.given(stage) if stage else first
                for stage in active.forward
            }
            arrived = {stage: links.arrived(stage) for stage in active.forward}
            losses = links.losses() if self._last in active.forward else []
            came_back = {stage: links.came_back(stage) for stage in active.backward}
            kept = {s: links.kept(s) for s in active.backward if s != self._last}
            links.send_on(active.sent_forward, active.sent_backward)
            for stage in range(1, self._last + 1) if batch is not None else ():
                links.give(stage, self._needed_of(batch, stage))
            logs: Any = {}
            sums: dict[int, list[Any]] = {}
            for stage in active.forward:
                if stage == self._last:
                    logs, sums[stage] = self._end(given[stage], arrived[stage], losses)
                else:
                    self._forward(stage, given[stage], arrived[stage])
            for stage in kept:
                sums[stage] = self._backward(stage, kept[stage], came_back[stage])
            for stage, gradients in sums.items():
                self._update(stage, gradients)
            if active.counts:
                self._model.optimizer.iterations.assign_add(1)
        return logs

    def _update(self, stage: int, gradients: list[Any]) -> None:
        # At the iteration of its batch, by which schedules of rates and Adam go.
        iterations = self._model.optimizer.iterations
        behind = self._lag * (self._last - stage)
        iterations.assign_sub(behind)
        did = update(self._model, self._pipeline, {stage: gradients})
        iterations.assign_add(behind - did)

    def _needed_of(self, batch: Any, stage: int) -> list[Any]:
        """Returns what a stage needs of a batch: of inputs, and of targets at the end."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = dict(
            zip(
                self._pipeline.inputs,
                _tf.flat_inputs(self._pipeline.functional, x),
                strict=True,
            )
        )
        parts = [
            part_of(inputs[each], start, end)
            for each in self._links.inputs_of(stage)
            for start, end in self._parts
        ]
        if stage < self._last:
            return parts
        self._batch = keras.tree.map_structure(lambda _: None, batch)
        return parts + keras.tree.flatten(batch)

    def _values(
        self, stage: int, given: Sequence[Any], arrived: ByMicrobatch
    ) -> list[Any]:
        """Returns what a stage takes, one microbatch after the other."""
        count = len(self._parts)
        values = dict(arrived)
        for at, each in enumerate(self._links.inputs_of(stage)):
            values[each] = list(given[at * count : (at + 1) * count])
        wanted = self._links.wanted[stage]
        return [values[each][m] for m in range(count) for each in wanted]

    def _tasks(self) -> Tasks:
        return Tasks(self._pipeline, (), self._parts, True, recompute=True)

    def _once(self, name: str, stage: int, compute: Any) -> StageFunction:
        key = name, stage
        if key not in self._functions:
            device = self._pipeline.stages[stage].device
            self._functions[key] = StageFunction(device, compute)
        return self._functions[key]

    def _of_kind(self, stage: int, is_forward: bool) -> Iterator[Task]:
        for task in self._tasks_of[stage]:
            if (task.kind == FORWARD) == is_forward:
                yield task

    def _forward(self, stage: int, given: Sequence[Any], arrived: ByMicrobatch) -> None:
        gives = self._pipeline.stages[stage].gives
        count = len(self._parts)

        def compute(values: list[Any]) -> list[Any]:
            tasks = self._tasks()
            _arrive(tasks, self._links.wanted[stage], values, count)
            for task in self._of_kind(stage, True):
                tasks.forward(stage, task.microbatch)
            draws = [tasks.draws(stage, m) for m in range(count)]
            self._draws[stage] = [len(each) for each in draws]
            results = [v for each in gives for v in _of_each(tasks, each, count)]
            return [*results, *sum(draws, []), *tasks.added]

        values = self._values(stage, given, arrived)
        found = self._once("forward", stage, compute)(values)
        results, found = _split(found, len(gives) * count)
        draws, losses = _split(found, sum(self._draws[stage]))
        by_id = {e: results[i * count :][:count] for i, e in enumerate(gives)}
        self._links.put(stage, by_id)
        self._links.keep(stage, [*values, *draws])
        self._links.put_losses(stage, losses)

    def _backward(
        self,
        stage: int,
        kept: Sequence[Any],
        came_back: Sequence[tuple[list[int], list[Any]]],
    ) -> list[Any]:
        takes, count = self._links.wanted[stage], len(self._parts)
        weights = len(self._pipeline.stages[stage].weights)

        def compute(values: list[Any]) -> list[Any]:
            tasks = self._tasks()
            taken, values = _split(values, len(takes) * count)
            for m in range(count):
                draws, values = _split(values, self._draws[stage][m])
                tasks.keep(stage, m, taken[m * len(takes) :][: len(takes)], draws)
            for ids, _ in came_back:
                gradients, values = _split(values, len(ids) * count)
                for m in range(count):
                    part = gradients[m * len(ids) :][: len(ids)]
                    tasks.add_gradients(m, ids, part)
            return self._backward_tasks(tasks, stage)

        values = [*kept, *(each for _, given in came_back for each in given)]
        found = self._once("backward", stage, compute)(values)
        return self._passed_back(stage, *_split(found, weights))

    def _backward_tasks(self, tasks: Tasks, stage: int) -> list[Any]:
        one = tf.ones(())
        tasks.start_from(stage, of_weights(self._pipeline.stages[stage], one)[1])
        for task in self._of_kind(stage, False):
            tasks.backward(stage, task.microbatch, one)
        return self._gradients(tasks, stage)

    def _gradients(self, tasks: Tasks, stage: int) -> list[Any]:
        """Returns the gradients by the weights of a stage, and by what it takes."""
        count = len(self._parts)
        by_taken = [tasks.gradients(m, self._links.wanted[stage]) for m in range(count)]
        return [*tasks.sums(stage), *sum(by_taken, [])]

    def _passed_back(
        self, stage: int, sums: list[Any], gradients: Sequence[Any]
    ) -> list[Any]:
        wanted = self._links.wanted[stage]
        by_id = {e: list(gradients[i :: len(wanted)]) for i, e in enumerate(wanted)}
        self._links.put_back(stage, by_id)
        return sums

    def _end(
        self, given: Sequence[Any], arrived: ByMicrobatch, losses: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Adds what the last stage does: a batch forward and backward, and its logs."""
        stage, count = self._last, len(self._parts)
        inputs, batch = _split(given, len(self._links.inputs_of(stage)) * count)
        values = self._values(stage, inputs, arrived)
        weights = len(self._pipeline.stages[stage].weights)

        def compute(values: list[Any]) -> list[Any]:
            taken, values = _split(values, len(self._links.wanted[stage]) * count)
            leaves, losses = _split(values, len(batch))
            tasks = Tasks(self._pipeline, (), self._parts, True)
            _arrive(tasks, self._links.wanted[stage], taken, count)
            logs = self._train(tasks, self._in_structure(leaves), losses)
            self._logs = sorted(logs)
            return [*self._gradients(tasks, stage), *(logs[e] for e in self._logs)]

        found = self._once("end", stage, compute)([*values, *batch, *losses])
        sums, found = _split(found, weights)
        gradients, logs = _split(found, len(found) - len(self._logs))
        return dict(zip(self._logs, logs, strict=True)), self._passed_back(
            stage, sums, gradients
        )

    def _in_structure(self, leaves: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(self._batch, list(leaves))

    def _train(self, tasks: Tasks, batch: Any, losses: Iterable[Any]) -> Any:
        stage, one = self._last, tf.ones(())
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        objective = Objective(
            self._model,
            lambda outputs: in_structure(self._pipeline, outputs),
            y,
            weight,
            self._parts,
        )
        end = End(
            self._pipeline, tasks, objective, len(self._parts), self._by_part, one
        )
        of_stages = [of_weights(each, one) for each in self._pipeline.stages]
        tasks.start_from(stage, of_stages[-1][1])
        for task in self._tasks_of[stage]:
            if task.kind == FORWARD:
                tasks.forward(stage, task.microbatch)
                end.after_forward(task.microbatch)
            else:
                end.before_backward(task.microbatch)
                tasks.backward(stage, task.microbatch, one)
        loss, predictions = end.result()
        with on(self._pipeline.stages[stage].device):
            regularized = [each for found, _ in of_stages for each in found]
            loss = total([loss, *regularized, *losses, *tasks.added])
        rows = self._parts[-1][1]
        return counted(self._model, self._pipeline, loss, rows, batch, predictions)


def _arrive(
    tasks: Tasks, ids: Sequence[int], values: Sequence[Any], count: int
) -> None:
    for m in range(count):
        part = values[m * len(ids) : (m + 1) * len(ids)]
        tasks.arrive(m, dict(zip(ids, part, strict=True)))


def _of_each(tasks: Tasks, id: int, count: int) -> list[Any]:
    return [tasks.values(m, [id])[0] for m in range(count)]


def _split(values: Sequence[Any], at: int) -> tuple[list[Any], list[Any]]:
    return list(values[:at]), list(values[at:])
