"""When a task of a pipeline may start: what it waits for. Pure.

A schedule says in which order a stage computes its tasks; a rule says what else a task
waits for. So the same schedules serve rules that wait for less.
"""

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
