"""Looks, while a job runs, whether its program uses the cluster."""

import math
import os
import time
from collections.abc import Collection, Iterable

import psutil

from launch.console.console import Console
from launch.plan import TaskPlan
from launch.supervise.cluster_use import ClusterUse, Socket, is_used
from launch.supervise.supervised_task import SupervisedTask
from tf_config import Task

_SECONDS_BETWEEN_LOOKS = 1.0


class ClusterWatch:
    """Warns of a program that trains without its cluster; see `launch.supervise.cluster_use`.

    Args:
        plans: Every task of the job, on this machine.
        console: Where notices go.
    """

    def __init__(self, plans: tuple[TaskPlan, ...], console: Console) -> None:
        self._plans = plans
        self._console = console
        self._looked = 0.0
        self.use = ClusterUse(plans)

    @property
    def interval(self) -> float:
        """How often `check` is to be called, in seconds."""
        return _SECONDS_BETWEEN_LOOKS if self.use.is_open else math.inf

    def check(self, tasks: Iterable[SupervisedTask]) -> None:
        """Looks, if it is time."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return
        self._looked = now
        alive = [task for task in tasks if task.alive]
        used = self._is_used({task.pid for task in alive})
        if notice := self.use.see(used, _computing(alive), now):
            self._console.notice(notice)

    def finish(self) -> None:
        """Looks once more when the program has ended.

        A closed connection shows for another minute: none is missed, however short.
        """
        if self.use.is_open:
            self.use.finish(self._is_used(set()))

    def _is_used(self, pids: Collection[int]) -> bool:
        try:
            return is_used(_sockets(), self._plans, pids)
        except psutil.Error:
            return True  # Who knows? An accusation would have to be right.


def _sockets() -> list[Socket]:
    return [
        Socket(each.pid, each.laddr.port, each.raddr.port if each.raddr else None)
        for each in psutil.net_connections("tcp")
        if each.laddr
    ]


def _computing(tasks: Iterable[SupervisedTask]) -> dict[Task, float]:
    """The tasks in which TensorFlow has run, and their processor time in seconds."""
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
    """Whether TensorFlow has started its threads, as it does for the first operation.

    Importing it starts none.
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
