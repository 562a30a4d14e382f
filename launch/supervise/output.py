"""The selection of the tasks' output that the console shows."""

import collections
import os
import re
from collections.abc import Sequence

from launch.console.console import Console
from launch.console.keras_output import KerasFit, split_progress
from launch.console.tf_noise import LOG_LEVEL, Chatter
from launch.job.job import Job
from launch.job.plan import EVERY_TASK, TaskPlan, task_name
from launch.supervise.policy import leader
from launch.supervise.task_process import TaskProcess

_WAITING_INTERVAL = 1.0  # seconds
# Of the leader, which may say more after an error.
_LAST_LINES = 20
_MOST_KNOWN = 1000
_TROUBLE = re.compile(
    # Log lines of Python, absl and TensorFlow's C++ code.
    r"(WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|[WEF][0-9]{4} [0-9:.]+ +[0-9]+ \S+:[0-9]+\] "
    # Lines of the module `warnings`.
    r"|\S.*:[0-9]+: \w*Warning: "
    # A traceback that ends a task is in the end of its log, which is shown then.
    r"|Exception in thread "
)
# The same message has another time and thread id in the log of each task.
_STAMP = re.compile(r"[WEF][0-9]{4} [0-9:.]+ +[0-9]+ ")


class Output:
    """Passes the tasks' lines on to the console, except noise and repetitions."""

    def __init__(self, job: Job, console: Console) -> None:
        quiet = frozenset() if job.chatty else quiet_tasks(job.kind, job.plans)
        self._quiet = quiet
        self._leader = leader(job.plans)
        self._console = console
        # A dict, since a set does not know which entry is the oldest.
        self._known: dict[str, None] = {}
        self._chatter = {plan.name: _chatter(plan) for plan in job.plans}
        self._fit = KerasFit()
        self._said: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)

    @property
    def notice(self) -> str:
        """Notice for the user before the first line of output, or ''."""
        if not self._quiet or self._leader is None:
            return ""
        return (
            f"every task runs the script: showing the output of {task_name(self._leader)} "
            "and the others' warnings and errors (--chatty shows everything)"
        )

    @property
    def interval(self) -> float:
        """The interval between calls of `check`, in seconds."""
        return _WAITING_INTERVAL if self._console.waiting else float("inf")

    def check(self) -> None:
        """Shows what has waited long enough."""
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
        is_trouble = bool(self._quiet) and not is_hidden and bool(_TROUBLE.match(rest))
        is_news = is_trouble and self._is_news(rest)
        if plan.name not in self._quiet:
            self._console.line(plan.name, progress if is_hidden else text)
        elif is_news:
            self._console.line(plan.name, rest)

    def _is_news(self, line: str) -> bool:
        """Returns True if no task has warned of the same yet."""
        key = _STAMP.sub("", line)
        is_news = key not in self._known
        self._known[key] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return is_news

    def partial(self, task: TaskProcess) -> None:
        """Takes the unfinished line of a task."""
        if task.plan.task == self._leader:
            self._console.partial(task.plan.name, task.partial)

    @property
    def advice(self) -> str:
        """Advice for the user at the end of a failed job, or ''."""
        return self._fit.advice

    def last_words(self, task: TaskProcess) -> str:
        """Returns the end of a failed task's log, or '' if it was shown already.

        Where every task refuses to train, the leader's error is that of all.
        """
        plan = task.plan
        if plan.name not in self._quiet:
            return ""
        words = task.tail(hidden=_chatter(plan).hides)
        return "" if words.splitlines()[-1].strip() in self._said else words


def quiet_tasks(kind: str, plans: Sequence[TaskPlan]) -> frozenset[str]:
    """Returns the names of the tasks that print the same as the leader.

    That is every other task of a job without ps in which every task runs the script.
    With ps, the workers of TF1 and Estimator programs train separately, and servers
    print other things. So does an evaluator.
    """
    first = leader(plans)
    if kind != EVERY_TASK or any(plan.task.job == "ps" for plan in plans):
        return frozenset()
    return frozenset(
        plan.name
        for plan in plans
        if plan.task != first and plan.task.job != "evaluator"
    )


def _chatter(plan: TaskPlan) -> Chatter:
    return Chatter(plan.env.get(LOG_LEVEL) or os.environ.get(LOG_LEVEL) or "2")
