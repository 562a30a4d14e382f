"""Restarts the lost tasks of a job, as `launch.supervise.policy` decides."""

import signal
import time

from launch.console.console import Console
from launch.job import Job
from launch.supervise import policy, readiness
from launch.supervise.end_request import EndRequest
from launch.supervise.event_loop import EventLoop
from launch.supervise.policy import Verdict
from launch.supervise.recovery import Recovery, cause_of, names
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.task_process import TaskProcess
from tf_config import Task, contract
from tf_config.contract import Report

_RECOVERY_INTERVAL = 0.2
_MOMENT = 1.0


class Restarts:
    """The recoveries of one job.

    Args:
        job: Says how many restarts are allowed.
        tasks: What to restart.
        loop: Waits between the steps of a recovery.
        end_request: Ends a recovery early.
        console: Where notices go.
    """

    def __init__(
        self,
        job: Job,
        tasks: RunningTasks,
        loop: EventLoop,
        end_request: EndRequest,
        console: Console,
    ) -> None:
        self._job = job
        self._tasks = tasks
        self._loop = loop
        self._end_request = end_request
        self._console = console
        self._leader = policy.leader(job.plans)
        self._has_trained = False
        self.recoveries: list[Recovery] = []

    def due(self) -> tuple[Task, ...]:
        """Returns the tasks to restart now; none if the job is over."""
        exits = self._tasks.exits
        if not self._job.max_restarts or self._end_request:
            return ()
        if self._leader and exits.get(self._leader, 0) > 0:
            # The chief's program fails when a ps dies. The ps is the cause, but its
            # exit may be seen a moment after the chief's.
            self._loop.wait(lambda: any(task.job == "ps" for task in exits), _MOMENT)
        return policy.to_restart(self._job.kind, self._job.plans, exits)

    def recover(self, again: tuple[Task, ...]) -> Verdict | None:
        """Restarts tasks.

        Returns:
            None, or the verdict on the job: there were too many restarts, or a task
            cannot be started.
        """
        job, now, cause = self._job, time.monotonic(), cause_of(self._tasks.exits)
        delay = policy.restart_delay(
            [each.began for each in self.recoveries],
            now,
            job.max_restarts,
            job.restart_window,
        )
        if delay is None:
            first, *_ = self._tasks.exits.values()
            return Verdict(
                policy.exit_status(first) or 1,
                f"{cause}; not restarting, since the job has recovered "
                f"{job.max_restarts} times within {job.restart_window:g} s "
                "(--max_restarts, --restart_window)",
            )
        self.recoveries.append(Recovery(cause, again, now, set(again)))
        wait = f" in {delay:g} s" if delay else ""
        self._console.notice(f"{cause}: restarting {names(again)}{wait}")
        self._end([self._tasks[task] for task in again])
        # Or else the old exits would still call for an end or a restart of the job.
        for task in again:
            self._tasks.exits.pop(task, None)
        self._loop.wait(lambda: bool(self._end_request), delay)
        if self._end_request:
            return None
        return self._tasks.start([plan for plan in job.plans if plan.task in again])

    def _end(self, tasks: list[TaskProcess]) -> None:
        for task in tasks:
            # The variables on a ps are lost to the next chief, but a script may have to
            # clean up.
            task.signal(signal.SIGKILL if task.plan.is_server else signal.SIGTERM)
        self._tasks.end(tasks, self._job.grace_period)
        self._tasks.kill(tasks)

    @property
    def interval(self) -> float:
        """How often to call `check`, in seconds."""
        is_pending = any(each.waiting for each in self.recoveries)
        return _RECOVERY_INTERVAL if is_pending else float("inf")

    def check(self) -> None:
        """Handles reports, and looks which restarted servers listen by now."""
        for reporter, report in self._tasks.take_reports():
            self._hear(reporter, report)
        for each in self.recoveries:
            late = time.monotonic() - each.began > self._job.startup_timeout
            for task in [self._tasks[task] for task in each.waiting]:
                if not task.plan.is_server or not task.alive:
                    continue
                if readiness.listens(task):
                    self._at_work(task.plan.task)
                elif late and each is self.recoveries[-1]:
                    self._console.notice(readiness.explain_silence([task], self._job))
                    task.signal(signal.SIGKILL)

    def _hear(self, reporter: TaskProcess, report: Report) -> None:
        if report.event == contract.TRAINING:
            if not self._has_trained:
                self._has_trained = True
                self._console.notice("the first step has finished")
            self._at_work(reporter.plan.task)
        elif report.event == contract.STALLED:
            by_name = {str(each.plan.task): each for each in self._tasks.alive}
            for name in report.tasks:
                if name in by_name:
                    self._console.notice(
                        f"{reporter.plan.name} is waiting for {name}: killing it"
                    )
                    by_name[name].signal(signal.SIGKILL)

    def _at_work(self, task: Task) -> None:
        for each in self.recoveries:
            if each.at_work(task, time.monotonic()):
                self._console.notice(each.line)
