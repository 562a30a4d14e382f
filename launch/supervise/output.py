"""What the console shows of the tasks' output."""

import os

from launch.console.console import Console
from launch.console.keras_progress import split_progress
from launch.console.tf_noise import LOG_LEVEL, hides
from launch.job import Job
from launch.plan import TaskPlan, task_name
from launch.supervise.echo import Echo, quiet_tasks
from launch.supervise.policy import leader
from launch.supervise.supervised_task import SupervisedTask


class Output:
    """Passes the tasks' lines on to the console, without those nobody needs.

    Args:
        job: Says what its tasks are, and whether all of them are to be heard.
        console: Where the lines go.
    """

    def __init__(self, job: Job, console: Console) -> None:
        quiet = frozenset() if job.chatty else quiet_tasks(job.kind, job.plans)
        self._quiet = quiet
        self._leader = leader(job.plans)
        self._console = console
        self._echo = Echo(console.line, quiet)

    @property
    def notice(self) -> str:
        """What to tell the user before the first line."""
        if not self._quiet or self._leader is None:
            return ""
        return (
            f"all tasks run the script: this is {task_name(self._leader)}'s output, "
            "with the others' warnings and errors (--chatty shows all)"
        )

    @property
    def waiting(self) -> bool:
        """Whether `tick` has to be called in a while."""
        return self._echo.waiting or self._console.waiting

    def tick(self) -> None:
        """Shows what has waited long enough."""
        self._echo.tick()
        self._console.tick()

    def line(self, plan: TaskPlan, text: str) -> None:
        """Takes a line of a task."""
        progress, rest = split_progress(text)
        if _is_chatter(plan, rest):
            text = progress
        if text or not rest:
            self._echo.line(plan.name, text)

    def partial(self, task: SupervisedTask) -> None:
        """Takes the line that a task has not finished yet."""
        if task.plan.task == self._leader:
            self._console.partial(task.plan.name, task.partial)

    def last_words(self, task: SupervisedTask) -> str:
        """The end of the log of a task that has failed, if it was not shown; or ""."""
        plan = task.plan
        if plan.name not in self._quiet:
            return ""
        self._echo.drop(plan.name)
        return task.tail(hidden=lambda text: _is_chatter(plan, text))

    def close(self) -> None:
        """Shows what still waits, at the end of the job."""
        self._echo.close()


def _is_chatter(plan: TaskPlan, text: str) -> bool:
    level = plan.env.get(LOG_LEVEL) or os.environ.get(LOG_LEVEL) or "2"
    return hides(level, text)
