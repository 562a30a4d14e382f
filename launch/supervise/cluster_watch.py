"""Looks, while a job runs, whether its program uses the cluster."""

import math
import time
from collections.abc import Collection

import psutil

from launch.console.console import Console
from launch.plan import TaskPlan
from launch.supervise.cluster_use import ClusterUse, Socket, is_used
from launch.supervise.running_tasks import RunningTasks

_SECONDS_BETWEEN_LOOKS = 1.0


class ClusterWatch:
    """Warns about a program that trains without its cluster."""

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
        """Looks at the tasks' sockets, if it is time."""
        now = time.monotonic()
        # The loop runs every check after every event.
        if now - self._looked < self.interval:
            return
        self._looked = now
        used = self._is_used({task.pid for task in self._tasks.alive})
        if notice := self._use.see(used):
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
