"""Recoveries of a job, and how long they took."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launch.job.plan import task_name
from launch.supervise.policy import describe_exit
from tf_config import Task


@dataclass
class Recovery:
    """One loss of tasks, and the recovery from it.

    Attributes:
        cause: The tasks that were lost, and how.
        again: The tasks that were restarted.
        began: The time when the loss was seen, in seconds on a steady clock.
        waiting: The tasks of `again` that are not at work yet. A server is at work once
            it listens, a script once it has reported its first step.
        seconds: Seconds from the loss until all of them were at work; None if never.
    """

    cause: str
    again: tuple[Task, ...]
    began: float
    waiting: set[Task] = field(default_factory=set)
    seconds: float | None = None

    def at_work(self, task: Task, now: float) -> bool:
        """Records that a task is at work; returns whether it was the last one."""
        if task not in self.waiting:
            return False
        self.waiting.discard(task)
        if self.waiting:
            return False
        self.seconds = now - self.began
        return True

    @property
    def line(self) -> str:
        """The recovery as a line of the closing table."""
        took = (
            "never seen at work"
            if self.seconds is None
            else f"at work after {self.seconds:.1f} s"
        )
        return f"recovered: {self.cause}; restarted {names(self.again)}, {took}"


def cause_of(exits: Mapping[Task, int], why: Callable[[Task], str]) -> str:
    """Describes which tasks were lost, and how; `why` returns what else is known.

    >>> cause_of({Task("ps", 0): -9, Task("chief", 0): 1}, lambda task: "")
    'ps:0 was killed by SIGKILL, chief exited with status 1'
    """
    return ", ".join(
        f"{task_name(task)} {describe_exit(code)}{why(task)}"
        for task, code in exits.items()
    )


def names(tasks: tuple[Task, ...] | list[Task]) -> str:
    """Lists the names of tasks, separated by commas."""
    return ", ".join(map(task_name, tasks))
