"""Runs train steps in which no stage waits, until all batches have passed all stages."""

from collections.abc import Callable
from typing import Any

from tfdist.pipeline.form import Form, tensors_of
from tfdist.pipeline.stale_schedule import Active, active
from tfdist.pipeline.stale_steps import StaleSteps


class Flow:
    """The batches that are under way through the stages of a model.

    All of them have the same form; before one of another form comes, they pass to the end.

    Args:
        new_steps: Returns the steps on batches of some number of rows.
        num_stages: The number of stages.
        lag: How many steps later a result is used by another stage: 1 or 2.
        traced: Returns a step, which takes tensors of these specs, as a graph.
        run: Runs such a graph on tensors.
        count_back: Has the optimizer forget iterations in which the pipe drained.
    """

    def __init__(
        self,
        new_steps: Callable[[int], StaleSteps],
        num_stages: int,
        lag: int,
        traced: Callable[..., Any],
        run: Callable[..., Any],
        count_back: Callable[[int], None],
    ) -> None:
        self._new_steps, self._traced, self._run = new_steps, traced, run
        self._num_stages, self._lag = num_stages, lag
        self._count_back = count_back
        self._steps: dict[str, StaleSteps] = {}
        self._functions: dict[Any, Any] = {}
        self._form: Form | None = None
        self._step = self._batches = 0
        self._logs: dict[str, Any] = {}

    def begin_epoch(self) -> None:
        """Forgets the logs of the epoch before."""
        self._logs = {}

    def feed(self, batch: Any) -> dict[str, Any]:
        """Takes in a batch; returns the logs of those that have reached the end."""
        tensors = tensors_of(batch)
        form = Form(batch, tensors)
        if self._form is not None and form.key != self._form.key:
            self.drain()
        self._form = form
        self._batches += 1
        self._advance(tensors)
        return self._logs

    def drain(self) -> dict[str, Any]:
        """Runs steps without a new batch until none is under way."""
        while self._is_under_way():
            self._advance(None)
        if self._form is not None:
            self._count_back(self._lag * (self._num_stages - 1))
        self._form, self._step, self._batches = None, 0, 0
        return self._logs

    def forget(self) -> None:
        """Discards what is under way, and its queues."""
        self._steps.clear()
        self._functions.clear()
        self._form, self._step, self._batches = None, 0, 0

    def _active(self, step: int) -> Active:
        return active(self._num_stages, self._lag, step, self._batches)

    def _is_under_way(self) -> bool:
        return self._form is not None and bool(self._active(self._step))

    def _advance(self, tensors: list[Any] | None) -> None:
        form = self._form
        assert form is not None
        now = self._active(self._step)
        key = form.key, now, tensors is None
        if key not in self._functions:
            if form.key not in self._steps:
                self._steps[form.key] = self._new_steps(form.rows)
            steps = self._steps[form.key]
            self._functions[key] = (
                self._traced(lambda: steps.step(now), [])
                if tensors is None
                else self._traced(
                    lambda *given: steps.step(now, form.batch(given)), form.specs
                )
            )
        logs = self._run(self._functions[key], tensors or [])
        self._step += 1
        if logs:
            self._logs = dict(logs)
