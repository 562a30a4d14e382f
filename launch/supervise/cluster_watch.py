"""Looks, while a job runs, whether its program uses the cluster."""

import math
import os
import time
from collections.abc import Collection, Iterable

import psutil

from launch.console.console import Console
from launch.plan import TaskPlan
from launch.supervise.cluster_use import ClusterUse, Socket, is_used
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.task_process import TaskProcess
from tf_config import Task

_SECONDS_BETWEEN_LOOKS = 1.0


class ClusterWatch:
    """Warns about a program that trains without its cluster.

    Args:
        use: Decides, from what this class sees; see `launch.supervise.cluster_use`.
        plans: Every task of the job.
        tasks: Their processes.
        console: Where notices go.
    """

    def __init__(
        self,
        use: ClusterUse,
        plans: tuple[TaskPlan, ...],
        tasks: RunningTasks,
        console: Console,
    ) -> None:
        self._use = use
        self._plans = plans
        self._tasks = tasks
        self._console = console
        self._looked = 0.0

    @property
    def interval(self) -> float:
        """How often to call `check`, in seconds."""
        return _SECONDS_BETWEEN_LOOKS if self._use.is_open else math.inf

    def check(self) -> None:
        """Looks at the tasks' sockets and threads, if it is time."""
        now = time.monotonic()
        # The loop runs every check after every event.
        if now - self._looked < self.interval:
            return
        self._looked = now
        alive = self._tasks.alive
        used = self._is_used({task.pid for task in alive})
        if notice := self._use.see(used, _computing(alive), now):
            self._console.notice(notice)

    def finish(self) -> None:
        """Looks once more when the program has ended.

        A closed connection stays visible for another minute, so none is missed.
        """
        if self._use.is_open:
            # No process ids: a closed connection has no process, so only its ports can
            # tell.
            self._use.finish(self._is_used(set()))

    def _is_used(self, pids: Collection[int]) -> bool:
        if any(plan.remote for plan in self._plans):
            return True  # Nobody sees the sockets of other hosts.
        try:
            return is_used(_sockets(), self._plans, pids)
        except psutil.Error:
            return True  # Not known: rather no warning than a wrong one.


def _sockets() -> list[Socket]:
    return [
        Socket(each.pid, each.laddr.port, each.raddr.port if each.raddr else None)
        for each in psutil.net_connections("tcp")
        if each.laddr
    ]


def _computing(tasks: Iterable[TaskProcess]) -> dict[Task, float]:
    """Returns the CPU seconds of each task in which TensorFlow has computed."""
    found = {}
    for task in tasks:
        if not task.plan.is_server and has_computed(task.pid):
            try:
                times = psutil.Process(task.pid).cpu_times()
            except psutil.Error:
                continue
            found[task.plan.task] = times.user + times.system
    return found


def has_computed(pid: int) -> bool:
    """Returns whether TensorFlow has run an operation in a process.

    It starts its threads with the first operation; importing it starts none of them.
    """
    directory = f"/proc/{pid}/task"
    try:
        for thread in os.listdir(directory):
            with open(f"{directory}/{thread}/comm") as file:
                if file.read().startswith("tf_"):
                    return True
    except OSError:
        pass  # It has ended.
    return False
