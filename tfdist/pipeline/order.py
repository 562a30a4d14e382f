"""The tasks of a schedule in one order, each after what it waits for. Pure."""

from collections.abc import Iterator

from tfdist.model_parallel.may_start import Place, Synchronous
from tfdist.model_parallel.schedule import Schedule, Task


def in_order(schedule: Schedule) -> Iterator[tuple[int, Task]]:
    """Yields each stage and its tasks, so that all that a task waits for comes before it.

    >>> from tfdist.model_parallel.schedule import gpipe
    >>> print(*(f"{task}@{stage}" for stage, task in in_order(gpipe(2, 1))))
    F0@0 F0@1 B0@1 B0@0
    """
    rule = Synchronous()
    ended: set[tuple[int, Task]] = set()
    left = [list(tasks) for tasks in schedule.stages]
    while any(left):
        before = len(ended)
        for stage, tasks in enumerate(left):
            while tasks and all(
                (each.stage, each.task) in ended
                for each in rule.waits_for(schedule, Place(0, stage, tasks[0]))
            ):
                task = tasks.pop(0)
                ended.add((stage, task))
                yield stage, task
        assert len(ended) > before, f"the tasks of {schedule.name} wait for each other"
