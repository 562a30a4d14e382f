"""When a task of a pipeline may start: what it waits for. Pure.

A schedule says in which order a stage computes its tasks; a rule says what else a task
waits for. So the same schedules serve rules that wait for less.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tfdist.model_parallel.schedule import BACKWARD, FORWARD, Schedule, Task


class Place(NamedTuple):
    """One task of a training run.

    Attributes:
        step: The step, counted from 0.
        stage: The stage, counted from 0.
        task: The task.
    """

    step: int
    stage: int
    task: Task


class MayStart(Protocol):
    """Says what a task waits for, apart from the tasks before it on its own stage."""

    def waits_for(self, schedule: Schedule, place: Place) -> tuple[Place, ...]:
        """Returns the tasks whose results must have arrived before one may start.

        Only tasks of the same or of earlier steps; a rule that lets a stage go on with
        older results names the task of an earlier step, or none.
        """
        ...


class Synchronous:
    """A task waits for the results of its own step: one process's results.

    The forward task of a microbatch waits for that of the stage before it. The backward
    task waits for that of the stage after it; on the last stage, for the forward task.

    >>> from tfdist.model_parallel.schedule import gpipe
    >>> [place] = Synchronous().waits_for(gpipe(3, 2), Place(5, 1, Task("backward", 0)))
    >>> print(place.step, place.stage, place.task)
    5 2 B0
    """

    def waits_for(self, schedule: Schedule, place: Place) -> tuple[Place, ...]:
        """Returns the one task that a task waits for, or none."""
        step, stage, task = place
        if task.kind == FORWARD:
            return (Place(step, stage - 1, task),) if stage else ()
        if stage + 1 < schedule.num_stages:
            return (Place(step, stage + 1, task),)
        return (Place(step, stage, Task(FORWARD, task.microbatch)),)


@dataclass(frozen=True)
class Stale:
    """A task makes do with results of other stages that are some steps old.

    So in a step no stage waits for another one, and there is no bubble. What crosses a
    cut in a step is used `lag` steps later: stage k then computes forward the batch that
    stage 0 had `lag * k` steps before, and the gradient of a batch is back at stage k
    `lag * (K - 1 - k)` steps after the last stage has computed it. `batch_of` says this
    as a number.

    Args:
        lag: The steps from one stage to the next one, 1 or more. With 1 no stage waits
            for another's computation, with 2 nor for a message.

    >>> from tfdist.model_parallel.schedule import gpipe
    >>> [place] = Stale(1).waits_for(gpipe(3, 2), Place(5, 1, Task("backward", 0)))
    >>> print(place.step, place.stage, place.task)
    4 2 B0
    """

    lag: int = 1

    def __post_init__(self) -> None:
        if self.lag < 1:
            raise ValueError(f"a lag is 1 or more steps; received {self.lag}")

    def waits_for(self, schedule: Schedule, place: Place) -> tuple[Place, ...]:
        """Returns what a task waits for: older results, except for its own stage's."""
        return tuple(
            each
            if each.stage == place.stage
            else each._replace(step=each.step - self.lag)
            for each in Synchronous().waits_for(schedule, place)
        )

    def batch_of(self, num_stages: int, stage: int, kind: str, step: int) -> int:
        """Returns which batch the tasks of a stage are about in a step.

        Args:
            num_stages: The number of stages, K.
            stage: The stage, counted from 0.
            kind: `"forward"` or `"backward"`.
            step: The step, counted from 0.

        Returns:
            The number of the batch, counted from 0; negative before the first one.
        """
        last = num_stages - 1
        cuts = stage if kind == FORWARD else 2 * last - stage
        return step - self.lag * cuts


def check_order(schedule: Schedule) -> None:
    """Checks that every stage computes each microbatch forward, then backward, once.

    Raises:
        ValueError: If it does not.
    """
    wanted = sorted(
        Task(kind, each)
        for kind in (FORWARD, BACKWARD)
        for each in range(schedule.num_microbatches)
    )
    for stage, tasks in enumerate(schedule.stages):
        order = {task: at for at, task in enumerate(tasks)}
        if sorted(tasks) != wanted or any(
            order[Task(BACKWARD, each)] < order[Task(FORWARD, each)]
            for each in range(schedule.num_microbatches)
        ):
            raise ValueError(
                f"stage {stage} of {schedule.name!r} must have one forward and then one "
                f"backward task for each microbatch; received {' '.join(map(str, tasks))}"
            )
