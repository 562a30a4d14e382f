"""Starts lost tasks of a job again, as `launch.supervise.policy` says."""

import signal
import time
from collections.abc import Callable, Mapping

from launch.console.console import Console
from launch.job import Job
from launch.plan import TaskPlan
from launch.supervise import policy, processes, readiness
from launch.supervise.policy import Verdict
from launch.supervise.recovery import Recovery, cause_of, names
from launch.supervise.supervised_task import SupervisedTask
from tf_config import Task, contract
from tf_config.contract import Report

_KILL_TIMEOUT = 10.0
_MOMENT = 1.0


class Restarts:
    """The recoveries of one job.

    Args:
        job: Says how many there may be.
        console: Where notices go.
        tasks: The newest process of each task.
        exits: The return code of each task that has ended and was not started again.
        wait: Handles events, and records exits, until a condition holds, or so many
            seconds have passed.
        start: Starts tasks; the verdict if one cannot be.
        wanted: Whether somebody wants the job to end.
    """

    def __init__(
        self,
        job: Job,
        console: Console,
        tasks: Mapping[Task, SupervisedTask],
        exits: dict[Task, int],
        wait: Callable[..., None],
        start: Callable[[list[TaskPlan]], Verdict | None],
        wanted: Callable[[], bool],
    ) -> None:
        self._job = job
        self._console = console
        self._tasks = tasks
        self._exits = exits
        self._wait = wait
        self._start = start
        self._wanted = wanted
        self._leader = policy.leader(job.plans)
        self.recoveries: list[Recovery] = []

    @property
    def pending(self) -> bool:
        """Whether `check` has to be called in a while."""
        return any(each.waiting for each in self.recoveries)

    def due(self) -> tuple[Task, ...]:
        """The tasks that have to be started again now; none if the job is over."""
        if not self._job.max_restarts or self._wanted():
            return ()
        if self._leader and self._exits.get(self._leader, 0) > 0:
            # A ps that took the program along may be reaped a moment later.
            self._wait(lambda: any(task.job == "ps" for task in self._exits), _MOMENT)
        return policy.to_start_again(self._job.kind, self._job.plans, self._exits)

    def recover(self, again: tuple[Task, ...]) -> Verdict | None:
        """Starts tasks again; the verdict if that was done too often, or fails."""
        job, now, cause = self._job, time.monotonic(), cause_of(self._exits)
        delay = policy.restart_delay(
            [each.began for each in self.recoveries],
            now,
            job.max_restarts,
            job.restart_window,
        )
        if delay is None:
            status = policy.exit_status(next(iter(self._exits.values()))) or 1
            return Verdict(
                status,
                f"{cause}; the job has recovered {job.max_restarts} times within "
                f"{job.restart_window:g} s, and does not again (--max_restarts, "
                "--restart_window)",
            )
        self.recoveries.append(Recovery(cause, again, now, set(again)))
        wait = f" in {delay:g} s" if delay else ""
        self._console.notice(f"{cause}: starting {names(again)} again{wait}")
        self._end([self._tasks[task] for task in again])
        for task in again:
            self._exits.pop(task, None)
        self._wait(self._wanted, delay)
        if self._wanted():
            return None
        return self._start([plan for plan in job.plans if plan.task in again])

    def _end(self, tasks: list[SupervisedTask]) -> None:
        for task in tasks:
            # What a ps holds is of no use any longer; a program may have to clean up.
            task.signal(signal.SIGKILL if task.plan.is_server else signal.SIGTERM)
        grace = self._job.grace_period
        self._wait(lambda: not any(each.alive for each in tasks), grace)
        for task in tasks:
            task.signal(signal.SIGKILL)
        self._wait(lambda: not any(each.alive for each in tasks), _KILL_TIMEOUT)
        processes.kill_strays([task.pid for task in self._tasks.values() if task.alive])

    def hear(self, reporter: TaskPlan, report: Report) -> None:
        """Takes what a task reports: that it is at work, or who keeps it waiting."""
        if report.event == contract.TRAINING:
            self.at_work(reporter.task)
        elif report.event == contract.STALLED:
            by_name = {str(task): each for task, each in self._tasks.items()}
            for name in report.tasks:
                if name in by_name and by_name[name].alive:
                    self._console.notice(
                        f"{reporter.name} waits for {name}: killing it"
                    )
                    by_name[name].signal(signal.SIGKILL)

    def at_work(self, task: Task) -> None:
        """Notes that a task is at work."""
        for each in self.recoveries:
            if each.at_work(task, time.monotonic()):
                self._console.notice(each.line)

    def check(self) -> None:
        """Looks which servers that were started again listen by now."""
        for each in self.recoveries:
            late = time.monotonic() - each.began > self._job.startup_timeout
            for task in [self._tasks[task] for task in each.waiting]:
                if not task.plan.is_server or not task.alive:
                    continue
                if readiness.listens(task):
                    self.at_work(task.plan.task)
                elif late and each is self.recoveries[-1]:
                    self._console.notice(readiness.explain_silence([task], self._job))
                    task.signal(signal.SIGKILL)
