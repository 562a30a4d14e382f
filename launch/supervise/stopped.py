"""Tasks that are stopped (SIGSTOP) and not continued."""

import signal
import time

import psutil

from launch.console.console import Console
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.task_process import TaskProcess

_LONGEST_INTERVAL = 5.0


class StoppedTasks:
    """Kills tasks that have been stopped for too long.

    A stopped process keeps its port and its connections, so the others wait for it
    without an error. Set a longer timeout to stop a task in a debugger.

    Args:
        timeout: How long a task may be stopped, in seconds.
        tasks: The tasks to look at.
        console: Where notices go.
    """

    def __init__(self, timeout: float, tasks: RunningTasks, console: Console) -> None:
        self._timeout = timeout
        self._tasks = tasks
        self._console = console
        self._since: dict[int, float] = {}
        self._looked = 0.0
        self.interval = min(_LONGEST_INTERVAL, timeout / 4)

    def check(self) -> None:
        """Looks at all tasks; call it every `interval` seconds."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return
        self._looked = now
        stopped = {task.pid: task for task in self._tasks.alive if _is_stopped(task)}
        # Drops tasks that were continued, so that their next stop is timed from its
        # start.
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        for pid, task in stopped.items():
            if now - self._since[pid] >= self._timeout:
                self._console.notice(
                    f"{task.plan.name} has been stopped (SIGSTOP) for "
                    f"{self._timeout:g} s (--stall_timeout): killing it"
                )
                task.signal(signal.SIGKILL)


def _is_stopped(task: TaskProcess) -> bool:
    try:
        return bool(psutil.Process(task.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
