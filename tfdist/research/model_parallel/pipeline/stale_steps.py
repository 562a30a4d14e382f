"""Train steps in which no stage waits for another, and the batches that flow through them.

A stage computes forward what an earlier one has left for it some steps ago, and backward a
batch whose gradient a later one has left for it. It computes that batch's activations
again, with the weights that it has by now, so that a gradient is that of these weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Gradient, Logs, Nest
from tfdist.research.model_parallel.pipeline.added_losses import of_weights
from tfdist.research.model_parallel.pipeline.devices import on
from tfdist.research.model_parallel.pipeline.end import End, counted, total, update
from tfdist.research.model_parallel.pipeline.links import (
    ByMicrobatch,
    StageFunction,
    StageLinks,
)
from tfdist.research.model_parallel.pipeline.microbatches import (
    Form,
    bounds,
    part_of,
    tensors_of,
)
from tfdist.research.model_parallel.pipeline.objective import Objective
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline
from tfdist.research.model_parallel.pipeline.tasks import Tasks
from tfdist.research.model_parallel.schedule import (
    FORWARD,
    Active,
    StageTask,
    active,
    make_schedule,
)


class StaleSteps:
    """Train steps on batches of one number of rows.

    Source: Huo, Gu and Huang, "Training neural networks using features replay", NeurIPS
    2018, algorithm 1, here with a queue of batches for each stage.
    """

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        strategy: tf.distribute.Strategy,
        lag: int,
        rows: int,
    ) -> None:
        self._model, self._pipeline = model, pipeline
        self._lag, self._parts = lag, bounds(rows, strategy.microbatches)
        self._last = len(pipeline.stages) - 1
        name, count = strategy.schedule, len(self._parts)
        self._by_part = name == "1f1b"
        self._tasks_of = make_schedule(name, self._last + 1, count).stages
        self._links = StageLinks(pipeline, lag)
        self._functions: dict[Any, StageFunction] = {}

    def step(self, active: Active, batch: Nest = None) -> Any:
        """Adds a step of the stages that are active, with the next batch if one came.

        Returns:
            The logs of the batch that reaches the last stage.
        """
        links = self._links
        first: Any = None if batch is None else self._needed_of(batch, 0)
        with _tf.keeping_losses(self._model):
            # Everything is taken before anything is put, which is for later steps.
            given = {
                stage: links.batches[stage].take() if stage else first
                for stage in active.forward
            }
            values = {
                stage: {**inputs, **links.arrived(stage)}
                for stage, (inputs, _) in given.items()
            }
            of_stages = links.losses.values() if self._last in active.forward else ()
            losses = [each for link in of_stages for each in link.take()]
            came_back = {stage: links.came_back(stage) for stage in active.backward}
            early = [stage for stage in active.backward if stage != self._last]
            kept = {stage: links.kept[stage].take() for stage in early}
            links.send_on(active.sent_forward, active.sent_backward)
            for stage in range(1, self._last + 1) if batch is not None else ():
                links.batches[stage].put(self._needed_of(batch, stage))
            logs: Logs = {}
            sums: dict[int, list[Gradient | None]] = {}
            for stage in active.forward:
                if stage == self._last:
                    whole = given[stage][1]
                    logs, sums[stage] = self._end(values[stage], whole, losses)
                else:
                    self._forward(stage, values[stage])
            for stage in kept:
                sums[stage] = self._backward(stage, kept[stage], came_back[stage])
            for stage, gradients in sums.items():
                self._update(stage, gradients)
            if active.counts:
                self._model.optimizer.iterations.assign_add(1)
        return logs

    def _update(self, stage: int, gradients: list[Gradient | None]) -> None:
        # At the iteration of its batch, by which schedules of rates and Adam go.
        iterations = self._model.optimizer.iterations
        behind = self._lag * (self._last - stage)
        iterations.assign_sub(behind)
        did = update(self._model, self._pipeline, {stage: gradients})
        iterations.assign_add(behind - did)

    def _needed_of(self, batch: Nest, stage: int) -> tuple[ByMicrobatch, Any]:
        """Returns the inputs that a stage takes of a batch, and at the end all of it."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        flat = _tf.flat_inputs(self._pipeline.functional, x)
        inputs = dict(zip(self._pipeline.inputs, flat, strict=True))
        taken = {
            each: [part_of(inputs[each], start, end) for start, end in self._parts]
            for each in self._links.inputs_of(stage)
        }
        return taken, batch if stage == self._last else None

    def _tasks(self, taken: ByMicrobatch, recompute: bool = True) -> Tasks:
        tasks = Tasks(self._pipeline, (), self._parts, True, recompute)
        for m in range(len(self._parts)):
            tasks.arrive(m, _of_microbatch(taken, m))
        return tasks

    def _once(
        self, name: str, stage: int, compute: Callable[[Nest], Nest]
    ) -> StageFunction:
        key = name, stage
        if key not in self._functions:
            device = self._pipeline.stages[stage].device
            self._functions[key] = StageFunction(device, compute)
        return self._functions[key]

    def _of_kind(self, stage: int, is_forward: bool) -> Iterator[StageTask]:
        for task in self._tasks_of[stage]:
            if (task.kind == FORWARD) == is_forward:
                yield task

    def _forward(self, stage: int, values: ByMicrobatch) -> None:
        gives, every = self._pipeline.stages[stage].gives, range(len(self._parts))

        def compute(values: ByMicrobatch) -> Any:
            tasks = self._tasks(values)
            for task in self._of_kind(stage, True):
                tasks.forward(stage, task.microbatch)
            results = _by_id(gives, [tasks.values(m, gives) for m in every])
            return results, [tasks.draws(stage, m) for m in every], tasks.added

        results, draws, losses = self._once("forward", stage, compute)(values)
        self._links.put(stage, results)
        self._links.kept[stage].put((values, draws))
        self._links.losses[stage].put(losses)

    def _backward(
        self, stage: int, kept: Nest, came_back: list[ByMicrobatch]
    ) -> list[Any]:
        def compute(values: Nest) -> Nest:
            (taken, draws), came_back = values
            tasks, one = self._tasks({}), tf.ones(())
            for m, drawn in enumerate(draws):
                tasks.keep(stage, m, _of_microbatch(taken, m), drawn)
                for each in came_back:
                    found = _of_microbatch(each, m)
                    tasks.add_gradients(m, list(found), list(found.values()))
            tasks.start_from(stage, of_weights(self._pipeline.stages[stage], one)[1])
            for task in self._of_kind(stage, False):
                tasks.backward(stage, task.microbatch, one)
            return self._gradients(tasks, stage)

        sums, gradients = self._once("backward", stage, compute)((kept, came_back))
        self._links.put_back(stage, gradients)
        return list(sums)

    def _gradients(self, tasks: Tasks, stage: int) -> tuple[list[Any], ByMicrobatch]:
        """Returns the gradients by the weights of a stage, and by its inputs."""
        wanted, every = self._links.wanted[stage], range(len(self._parts))
        by_taken = [tasks.gradients(m, wanted) for m in every]
        return tasks.sums(stage), _by_id(wanted, by_taken)

    def _end(
        self, values: ByMicrobatch, batch: Nest, losses: Sequence[tf.Tensor]
    ) -> tuple[Any, list[Any]]:
        """Adds the last stage's part: a batch forward and backward, and its logs."""
        stage = self._last

        def compute(values: Nest) -> Nest:
            taken, batch, losses = values
            tasks = self._tasks(taken, recompute=False)
            logs = self._train(tasks, batch, losses)
            return logs, *self._gradients(tasks, stage)

        compute_once = self._once("end", stage, compute)
        logs, sums, gradients = compute_once((values, batch, losses))
        self._links.put_back(stage, gradients)
        return logs, sums

    def _train(
        self, tasks: Tasks, batch: Nest, losses: Iterable[tf.Tensor]
    ) -> tf.Tensor:
        stage, one = self._last, tf.ones(())
        objective = Objective(self._model, self._pipeline, batch, self._parts)
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


def _of_microbatch(values: ByMicrobatch, microbatch: int) -> dict[int, Any]:
    return {each: of_each[microbatch] for each, of_each in values.items()}


def _by_id(ids: Sequence[int], parts: Sequence[Sequence[Any]]) -> ByMicrobatch:
    return {each: [part[at] for part in parts] for at, each in enumerate(ids)}


class Flow:
    """The batches that are in flight through the stages of a model.

    All of them have the same form; before one of another form comes, they pass to the end.
    """

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        strategy: tf.distribute.Strategy,
        traced: Callable[..., Any],
        run: Callable[..., Any],
    ) -> None:
        self._model, self._pipeline, self._strategy = model, pipeline, strategy
        self._traced, self._run = traced, run
        self._num_stages = len(pipeline.stages)
        # With 2 a result has a whole step to travel already; more would only be older.
        self._lag = min(strategy.max_staleness, 2)
        self._steps: dict[str, StaleSteps] = {}
        self._functions: dict[Any, Any] = {}
        self._form: Form | None = None
        self._step = self._batches = 0
        self._logs: Logs = {}

    def begin_epoch(self) -> None:
        """Forgets the logs of the epoch before."""
        self._logs = {}

    def feed(self, batch: Nest) -> Logs:
        """Takes in a batch; returns the logs of batches that have reached the end."""
        tensors = tensors_of(batch)
        form = Form(batch, tensors)
        if self._form is not None and form.key != self._form.key:
            self.drain()
        self._form = form
        self._batches += 1
        self._advance(tensors)
        return self._logs

    def drain(self) -> Logs:
        """Runs steps without a new batch until none is in flight."""
        if self._form is not None:
            while self._active():
                self._advance(None)
            # Steps count from when the last stage begins until the first one has ended.
            too_many = self._lag * (self._num_stages - 1)
            self._model.optimizer.iterations.assign_sub(too_many)
        self._form, self._step, self._batches = None, 0, 0
        return self._logs

    def forget(self) -> None:
        """Discards what is in flight, and its queues."""
        self._steps.clear()
        self._functions.clear()
        self._form, self._step, self._batches = None, 0, 0

    def _active(self) -> Active:
        return active(self._num_stages, self._lag, self._step, self._batches)

    def _advance(self, tensors: list[tf.Tensor] | None) -> None:
        form = self._form
        assert form is not None
        now = self._active()
        # A graph for each set of active stages: some to fill and drain, one when full.
        key = form.key, now, tensors is None
        if key not in self._functions:
            if form.key not in self._steps:
                self._steps[form.key] = StaleSteps(
                    self._model, self._pipeline, self._strategy, self._lag, form.rows
                )
            steps = self._steps[form.key]

            def step(*given: tf.Tensor) -> Nest:
                return steps.step(now, form.batch(given) if given else None)

            specs = [] if tensors is None else form.specs
            self._functions[key] = self._traced(step, specs)
        logs = self._run(self._functions[key], tensors or [])
        self._step += 1
        if logs:
            self._logs = dict(logs)
