"""Tasks that are stopped (SIGSTOP) and that nobody continues."""

import signal
import time
from collections.abc import Iterable

import psutil

from launch.console.console import Console
from launch.supervise.supervised_task import SupervisedTask

_LONGEST_INTERVAL = 5.0


class StoppedTasks:
    """Looks which tasks are stopped, and kills those that are for too long.

    A stopped process keeps its port and its connections: the others wait for it, and
    it cannot tell anybody. Whoever debugs one, gives it more time.

    Args:
        timeout: For how long a task may be stopped, in seconds.
        console: Where notices go.
    """

    def __init__(self, timeout: float, console: Console) -> None:
        self._timeout = timeout
        self._console = console
        self._since: dict[int, float] = {}
        self._looked = 0.0
        self.interval = min(_LONGEST_INTERVAL, timeout / 4)

    def check(self, tasks: Iterable[SupervisedTask]) -> None:
        """Is to be called every `interval` seconds."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return
        self._looked = now
        stopped = {task.pid: task for task in tasks if _is_stopped(task)}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        for pid, task in stopped.items():
            if now - self._since[pid] >= self._timeout:
                self._console.notice(
                    f"{task.plan.name} has been stopped (SIGSTOP) for "
                    f"{self._timeout:g} s (--stall_timeout): killing it"
                )
                task.signal(signal.SIGKILL)


def _is_stopped(task: SupervisedTask) -> bool:
    if not task.alive:
        return False
    try:
        return bool(psutil.Process(task.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
