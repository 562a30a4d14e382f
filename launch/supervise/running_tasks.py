"""The tasks of a job as processes: started, read, reaped, and closed.

Tasks that stay stopped (SIGSTOP) are killed.
"""

import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from launch.console.console import Console
from launch.job.job import Job
from launch.job.plan import COORDINATOR, TaskPlan
from launch.remote import host
from launch.remote.memory import MemoryWatch
from launch.supervise import policy, processes
from launch.supervise.cluster_use import ClusterUse
from launch.supervise.event_loop import EventLoop
from launch.supervise.output import Output
from launch.supervise.policy import Verdict
from launch.supervise.starter import Starter
from launch.supervise.task_process import TaskProcess
from launch.supervise.tunnels import Tunnels
from tf_config import Task
from tf_config.contract import Report

_KILL_TIMEOUT = 10.0
_REMOTE_KILL_TIMEOUT = 5.0
_DRAIN_TIMEOUT = 1.0
_LONGEST_INTERVAL = 5.0


@dataclass(eq=False)
class RunningTasks:
    """The newest process of each task that was started.

    Attributes:
        exits: The return code of each task that has ended and was not restarted, in
            order of time; the negative signal number if it was killed.
    """

    _job: Job
    _loop: EventLoop
    _output: Output
    _use: ClusterUse
    _starter: Starter
    _tunnels: Tunnels

    interval = MemoryWatch.interval  # Every exit wakes the loop, by SIGCHLD.

    def __post_init__(self) -> None:
        self._leader = policy.leader(self._job.plans)
        self._processes: dict[Task, TaskProcess] = {}
        self._reports: list[tuple[TaskProcess, Report]] = []
        self._killed: list[processes.Exit] = []
        self._hidden: set[Task] = set()
        self.exits: dict[Task, int] = {}
        self._memory = MemoryWatch()

    def __iter__(self) -> Iterator[TaskProcess]:
        return iter(self._processes.values())

    def __getitem__(self, task: Task) -> TaskProcess:
        return self._processes[task]

    def get(self, task: Task) -> TaskProcess | None:
        """Returns the newest process of a task; None if it was never started."""
        return self._processes.get(task)

    @property
    def alive(self) -> list[TaskProcess]:
        """The processes that have not been reaped."""
        return [process for process in self if process.alive]

    def start(self, plans: Collection[TaskPlan]) -> Verdict | None:
        """Starts tasks, again if they have run; returns a verdict if one cannot be."""
        for plan in plans:
            before = self._processes.get(plan.task)
            self._hidden.discard(plan.task)
            self.exits.pop(plan.task, None)
            try:
                process = TaskProcess(
                    plan,
                    self._job.log_path(plan),
                    partial(self._on_line, plan),
                    starter=self._starter,
                    inherit_stdin=plan.task == self._leader,
                    before=before,
                )
            except OSError as error:
                return Verdict(1, f"cannot start {plan.name}: {error}")
            if before:
                self._close(before)
            self._processes[plan.task] = process
            self._loop.register(process, partial(self._read, process))
            self._loop.register(process.reports, partial(self._read_reports, process))
        return None

    def hide(self, tasks: Collection[Task]) -> None:
        """Leaves the output of tasks that start again in their logs, until they do.

        The launcher has said which task was lost. The others would tell of it on dozens of
        lines of TensorFlow's.
        """
        if self._job.kind == COORDINATOR and not self._job.chatty:
            self._hidden |= set(tasks)

    def why(self, task: Task) -> str:
        """Returns further facts about the end of a task, after a comma, or ''."""
        exit = self._processes[task].exit
        return f", {exit.why}" if exit and exit.why else ""

    def take_reports(self) -> list[tuple[TaskProcess, Report]]:
        """Returns the reports since the last call, by task."""
        reports, self._reports = self._reports, []
        return reports

    def check(self) -> None:
        """Records the exits of processes that have ended."""
        self._memory.check()
        exits = processes.reap()
        self._tunnels.record(exits)
        self._record(exits)

    def end(
        self, tasks: Collection[TaskProcess], grace_period: float
    ) -> list[TaskProcess]:
        """Waits until processes that were told to end have, and returns the others."""
        self._loop.wait(lambda: not any(each.alive for each in tasks), grace_period)
        return [each for each in tasks if each.alive]

    def end_gently(self, grace_period: float) -> list[TaskProcess]:
        """Tells all processes to end, and returns those that did not in time."""
        running = self.alive
        for process in running:
            process.told_to_end = True
            process.signal(signal.SIGTERM)
        return self.end(running, grace_period)

    def kill(self, tasks: Collection[TaskProcess]) -> None:
        """Kills processes, and everything that ended processes left behind."""
        for process in tasks:
            process.signal(signal.SIGKILL)
        for process in self.end(tasks, _KILL_TIMEOUT):
            process.let_go()
        kept = [process.pid for process in self.alive]
        processes.kill_strays([*kept, *self._starter.pids, *self._tunnels.pids])

    def kill_everything(self) -> list[str]:
        """Kills every descendant, and describes those that live; call `close` next."""
        for process in self.alive:
            process.told_to_end = process.was_killed = True
        # On other hosts, nobody else would wait for the end of what runs there.
        remote = [process for process in self.alive if process.plan.remote]
        for process in remote:
            process.signal(signal.SIGKILL)
        self.end(remote, _REMOTE_KILL_TIMEOUT)
        self._tunnels.end(_REMOTE_KILL_TIMEOUT)
        self._killed, survivors = processes.kill_descendants(_KILL_TIMEOUT)
        return survivors

    def close(self) -> None:
        """Takes the last output of all processes, and closes their files."""
        self._record(self._killed)
        # Bounded, since a process that could not be killed may hold a pipe open.
        self._loop.wait(lambda: not any(map(self._loop.has, self)), _DRAIN_TIMEOUT)
        for process in self:
            self._close(process)
        self._tunnels.close()

    def _record(self, exits: list[processes.Exit]) -> None:
        # Only tasks that have not been reaped: the kernel reuses the ids of the others.
        by_pid = {process.pid: process for process in self.alive}
        for exit in exits:
            # Other process ids are orphans that this process has adopted.
            if process := by_pid.get(exit.pid):
                # The last lines come before the news of its end.
                self._read(process)
                self._read_reports(process)
                if exit.code == -signal.SIGKILL and not process.was_killed:
                    exit = replace(exit, why=self._memory.explain(exit.peak))
                process.ended(exit)
                assert process.exit
                self.exits[process.plan.task] = process.exit.code

    def _read(self, process: TaskProcess) -> None:
        if self._loop.has(process) and not process.read():
            self._loop.unregister(process)
        self._use.hear(process.plan.task, process.partial)
        if process.plan.task not in self._hidden:
            self._output.partial(process)

    def _read_reports(self, process: TaskProcess) -> None:
        if not self._loop.has(process.reports):
            return
        reports, is_open = process.read_reports()
        if not is_open:
            self._loop.unregister(process.reports)
        self._reports += [(process, report) for report in reports]

    def _on_line(self, plan: TaskPlan, line: str) -> None:
        self._use.hear(plan.task, line)
        if plan.task not in self._hidden:
            self._output.line(plan, line)

    def _close(self, process: TaskProcess) -> None:
        self._read(process)
        for stream in (process, process.reports):
            if self._loop.has(stream):
                self._loop.unregister(stream)
        process.close()


class StoppedTasks:
    """Kills tasks that have been stopped for too long.

    A stopped process keeps its port and its connections, so the others wait for it
    without an error. Set a longer timeout to stop a task in a debugger.
    """

    def __init__(self, timeout: float, tasks: RunningTasks, console: Console) -> None:
        self._timeout = timeout
        self._tasks = tasks
        self._console = console
        # Keyed by process id and stop. A process that is continued between two looks,
        # for example by a program that slows it down, is in another stop.
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
