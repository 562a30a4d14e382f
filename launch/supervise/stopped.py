"""Tasks that are stopped (SIGSTOP) and not continued."""

import signal
import time

from launch.console.console import Console
from launch.remote import host
from launch.supervise.running_tasks import RunningTasks

_LONGEST_INTERVAL = 5.0


class StoppedTasks:
    """Kills tasks that have been stopped for too long.

    A stopped process keeps its port and its connections, so the others wait for it
    without an error. Set a longer timeout to stop a task in a debugger.
    """

    def __init__(self, timeout: float, tasks: RunningTasks, console: Console) -> None:
        self._timeout = timeout
        self._tasks = tasks
        self._console = console
        # By the id of a process and its stop: one that is continued between two looks, as
        # by a program that slows it down, is in another stop.
        self._since: dict[tuple[int, int], float] = {}
        self._looked = 0.0
        self.interval = min(_LONGEST_INTERVAL, timeout / 4)

    def check(self) -> None:
        """Looks at all tasks; call it every `interval` seconds."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return
        self._looked = now
        stops = ((task, host.stop_of(task.pid)) for task in self._tasks.alive)
        stopped = {(task.pid, stop): task for task, stop in stops if stop is not None}
        self._since = {stop: self._since.get(stop, now) for stop in stopped}
        for stop, task in stopped.items():
            if now - self._since[stop] >= self._timeout:
                self._console.notice(
                    f"{task.plan.name} has been stopped (SIGSTOP) for "
                    f"{self._timeout:g} s (--stall_timeout): killing it"
                )
                task.signal(signal.SIGKILL)
