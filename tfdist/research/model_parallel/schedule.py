"""Schedules of pipeline stages as plain data: each stage's order of microbatches.

A model is cut into stages, and a batch into microbatches. Each stage computes a forward
and a backward task for every microbatch, one at a time, in the order of its list.

With K stages that take equally long, and M microbatches, a step of either schedule takes
M + K - 1 times the seconds of a forward and a backward task: the first task each way
reaches the other end after K - 1 more. So a stage is idle for `(K - 1) / (M + K - 1)` of a
step, its bubble. Source: Huang et al., "GPipe", NeurIPS 2019, section 2.3.
`tfdist.research.model_parallel.pipeline.step_time` has stages and links that differ.

Stages that do not wait for each other (`max_staleness`) have no bubble: what crosses a cut
in a step is used `lag` steps later. With a lag of 1 no stage waits for another's
computation, with 2 nor for a message. Batches flow through the stages as through a pipe: it
fills, it is full, and it drains when no batch follows; `active` says which stages have
something to do meanwhile.

>>> print(one_forward_one_backward(2, 3))
stage 0: F0 F1 B0 F2 B1 B2
stage 1: F0 B0 F1 B1 F2 B2
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tfdist._support.errors import Error

FORWARD, BACKWARD = "forward", "backward"


class PipelineScheduleError(Error, ValueError):
    """A schedule that does not exist: the message says which do."""


class StageTask(NamedTuple):
    """The task of one stage for one microbatch: its `kind`, and a number from 0."""

    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.microbatch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """The tasks of one step, in the order in which each stage computes them.

    For each microbatch, a stage has one forward and one backward task.
    """

    name: str
    stages: tuple[tuple[StageTask, ...], ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches of a batch."""
        return len(self.stages[0]) // 2

    def kept(self, stage: int) -> int:
        """Returns for how many microbatches a stage keeps activations at its peak.

        A stage keeps the activations of a microbatch from its forward task until its
        backward task has ended.
        """
        now = peak = 0
        for task in self.stages[stage]:
            now += 1 if task.kind == FORWARD else -1
            peak = max(peak, now)
        return peak

    def in_order(self) -> Iterator[tuple[int, StageTask]]:
        """Yields each stage with each of its tasks, after the task whose result that takes.

        >>> print(*(f"{task}@{stage}" for stage, task in gpipe(2, 1).in_order()))
        F0@0 F0@1 B0@1 B0@0
        """
        ended: set[tuple[int, StageTask] | None] = {None}
        left = [list(tasks) for tasks in self.stages]
        while any(left):
            before = len(ended)
            for stage, tasks in enumerate(left):
                while tasks and self._source(stage, tasks[0]) in ended:
                    task = tasks.pop(0)
                    ended.add((stage, task))
                    yield stage, task
            assert len(ended) > before, f"the tasks of {self.name} wait for each other"

    def _source(self, stage: int, task: StageTask) -> tuple[int, StageTask] | None:
        """Returns the stage and the task whose result a task takes; None for the batch."""
        if task.kind == FORWARD:
            return (stage - 1, task) if stage else None
        if stage + 1 < self.num_stages:
            return stage + 1, task
        return stage, StageTask(FORWARD, task.microbatch)

    def __str__(self) -> str:
        return "\n".join(
            f"stage {stage}: {' '.join(map(str, tasks))}"
            for stage, tasks in enumerate(self.stages)
        )


def gpipe(num_stages: int, num_microbatches: int) -> PipelineSchedule:
    """All forward tasks, then all backward tasks, the last microbatch first.

    Each stage keeps the activations of all microbatches.

    Source: Huang et al., "GPipe: efficient training of giant neural networks using
    pipeline parallelism", NeurIPS 2019, section 2.
    """
    _check(num_stages, num_microbatches)
    forward = tuple(StageTask(FORWARD, each) for each in range(num_microbatches))
    backward = tuple(StageTask(BACKWARD, task.microbatch) for task in reversed(forward))
    return PipelineSchedule("gpipe", (forward + backward,) * num_stages)


def one_forward_one_backward(
    num_stages: int, num_microbatches: int
) -> PipelineSchedule:
    """A few forward tasks, then one backward and one forward task in turn (1F1B).

    Stage k of K begins with K - k forward tasks, and from then on it keeps the
    activations of at most K - k microbatches. It takes as long as `gpipe`.

    Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN
    training", SOSP 2019, section 3.2, here with a flush at the end of each batch, so
    that all its microbatches are computed with the same weights.
    """
    _check(num_stages, num_microbatches)
    return PipelineSchedule(
        "1f1b",
        tuple(
            _in_turn(min(num_stages - stage, num_microbatches), num_microbatches)
            for stage in range(num_stages)
        ),
    )


def _in_turn(ahead: int, num_microbatches: int) -> tuple[StageTask, ...]:
    tasks = [StageTask(FORWARD, each) for each in range(ahead)]
    for each in range(num_microbatches):
        tasks.append(StageTask(BACKWARD, each))
        if each + ahead < num_microbatches:
            tasks.append(StageTask(FORWARD, each + ahead))
    return tuple(tasks)


SCHEDULES: Mapping[str, Callable[[int, int], PipelineSchedule]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_forward_one_backward}
)
"""The schedules by their names."""


def make_schedule(
    name: str, num_stages: int, num_microbatches: int
) -> PipelineSchedule:
    """Returns the schedule of this name in `SCHEDULES`."""
    if name not in SCHEDULES:
        raise PipelineScheduleError(
            f"schedule must be one of {', '.join(SCHEDULES)}; received {name!r}"
        )
    return SCHEDULES[name](num_stages, num_microbatches)


def _check(num_stages: int, num_microbatches: int) -> None:
    for what, number in (("stage", num_stages), ("microbatch", num_microbatches)):
        if number < 1:
            raise PipelineScheduleError(
                f"a pipeline needs at least one {what}; received {number}"
            )


@dataclass(frozen=True)
class Active:
    """The stages that have something to do in a step.

    Attributes:
        forward: The stages that compute a batch forward.
        backward: The stages that compute a batch backward.
        sent_forward: The stages whose results of the step before are in flight.
        sent_backward: The same for gradients.
        counts: Whether the first batch has reached the last stage, in this step or before.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    sent_forward: tuple[int, ...] = ()
    sent_backward: tuple[int, ...] = ()
    counts: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.forward or self.backward or self.sent_forward or self.sent_backward
        )


def active(num_stages: int, lag: int, step: int, batches: int) -> Active:
    """Returns the work of the stages in a step, counted from 0, with a lag of 1 or 2.

    One batch has come per step, this step's among them, until there were no more.

    >>> active(2, 1, 0, 1).forward, active(2, 1, 1, 2).forward
    ((0,), (0, 1))
    """

    def busy(kind: str, before: int = 0) -> tuple[int, ...]:
        return tuple(
            stage
            for stage in range(num_stages)
            if 0 <= batch_of(num_stages, lag, stage, kind, step - before) < batches
        )

    counts = batch_of(num_stages, lag, num_stages - 1, FORWARD, step) >= 0
    if lag == 1:
        return Active(busy(FORWARD), busy(BACKWARD), counts=counts)
    # The ends of the pipe send nothing further.
    sent_forward = tuple(each for each in busy(FORWARD, 1) if each + 1 < num_stages)
    sent_backward = tuple(each for each in busy(BACKWARD, 1) if each > 0)
    return Active(busy(FORWARD), busy(BACKWARD), sent_forward, sent_backward, counts)


def batch_of(num_stages: int, lag: int, stage: int, kind: str, step: int) -> int:
    """Returns which batch a stage computes in a step, forward or backward.

    Stage k of K computes forward the batch that stage 0 had `lag * k` steps before, and the
    gradient of a batch is back at stage k `lag * (K - 1 - k)` steps after the last stage
    has computed it. All are counted from 0; batches before the first one are negative.
    """
    cuts = stage if kind == FORWARD else 2 * (num_stages - 1) - stage
    return step - lag * cuts
