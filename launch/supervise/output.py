"""What the console shows of the tasks' output."""

import collections
import os

from launch.console.console import Console
from launch.console.keras_output import KerasFit, split_progress
from launch.console.tf_noise import LOG_LEVEL, Chatter
from launch.job import Job
from launch.plan import TaskPlan, task_name
from launch.supervise.echo import Echo, quiet_tasks
from launch.supervise.policy import leader
from launch.supervise.task_process import TaskProcess

_WAITING_INTERVAL = 1.0  # seconds
# Of the leader, which may say more after an error.
_LAST_LINES = 20


class Output:
    """Passes the tasks' lines on to the console, except noise and repetitions.

    Args:
        job: Says which tasks there are, and whether to show all of them.
        console: Where the lines go.
    """

    def __init__(self, job: Job, console: Console) -> None:
        quiet = frozenset() if job.chatty else quiet_tasks(job.kind, job.plans)
        self._quiet = quiet
        self._leader = leader(job.plans)
        self._console = console
        self._echo = Echo(console.line, quiet)
        self._chatter = {plan.name: _chatter(plan) for plan in job.plans}
        self._fit = KerasFit()
        self._said: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)

    @property
    def notice(self) -> str:
        """What to tell the user before the first line, or ''."""
        if not self._quiet or self._leader is None:
            return ""
        return (
            f"every task runs the script: showing the output of {task_name(self._leader)} "
            "and the others' warnings and errors (--chatty shows everything)"
        )

    @property
    def interval(self) -> float:
        """How often to call `check`, in seconds."""
        is_waiting = self._echo.waiting or self._console.waiting
        return _WAITING_INTERVAL if is_waiting else float("inf")

    def check(self) -> None:
        """Shows what has waited long enough."""
        self._echo.tick()
        self._console.tick()

    def line(self, plan: TaskPlan, text: str) -> None:
        """Takes a line of a task."""
        progress, rest = split_progress(text)
        self._fit.hear(plan.name, rest)
        is_hidden = self._chatter[plan.name].hides(rest)
        if is_hidden and not progress:
            return
        if plan.task == self._leader:
            self._said.append(rest)
        self._echo.line(plan.name, progress if is_hidden else text)

    def partial(self, task: TaskProcess) -> None:
        """Takes the unfinished line of a task."""
        if task.plan.task == self._leader:
            self._console.partial(task.plan.name, task.partial)

    @property
    def advice(self) -> str:
        """What to tell the user of a job that failed, or ''."""
        return self._fit.advice

    def last_words(self, task: TaskProcess) -> str:
        """Returns the end of a failed task's log, or '' if it was shown already.

        Where every task refuses to train, the leader's error is that of all.
        """
        plan = task.plan
        if plan.name not in self._quiet:
            return ""
        self._echo.drop(plan.name)
        words = task.tail(hidden=_chatter(plan).hides)
        return "" if words.splitlines()[-1].strip() in self._said else words

    def close(self) -> None:
        """Shows what is still waiting, at the end of the job."""
        self._echo.close()


def _chatter(plan: TaskPlan) -> Chatter:
    return Chatter(plan.env.get(LOG_LEVEL) or os.environ.get(LOG_LEVEL) or "2")
