"""Restarts the lost tasks of a job, as `launch.supervise.policy` decides."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from launch.console.console import Console
from launch.job.job import Job
from launch.job.plan import EVERY_TASK
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
# Between tries to reach the host of a worker that was given up.
_RECONNECT_INTERVAL = 15.0


@dataclass(eq=False)
class Restarts:
    """The recoveries of one job."""

    _job: Job
    _tasks: RunningTasks
    _loop: EventLoop
    _end_request: EndRequest
    _console: Console
    _hear_progress: Callable[[Task, Mapping[str, float]], None]

    def __post_init__(self) -> None:
        self._leader = policy.leader(self._job.plans)
        self._began, self._has_trained = time.monotonic(), False
        self._failures: Counter[str] = Counter()
        self._try_again_at: dict[Task, float] = {}
        self.given_up: set[Task] = set()
        self.recoveries: list[Recovery] = []

    def due(self) -> tuple[Task, ...]:
        """Returns the tasks to restart or to give up now; none if the job is over."""
        exits = self._tasks.exits
        if self._end_request:
            return ()
        if self._leader and exits.get(self._leader, 0) > 0:
            # The chief's program fails when a server with variables dies. That is the
            # cause, but its exit may be seen a moment after the chief's.
            self._loop.wait(lambda: bool(set(exits) - {self._leader}), _MOMENT)
        if self._job.kind == EVERY_TASK:
            failed = [task for task in exits if exits[task] != 0]
            if spare := tuple(task for task in failed if self._can_spare([task])):
                return spare
        job = self._job
        again = policy.to_restart(job.kind, job.plans, exits, job.resumes)
        # Without restarts, a worker may still be given up.
        return again if self._job.max_restarts or self._worst(again) else ()

    def recover(self, again: tuple[Task, ...]) -> Verdict | None:
        """Restarts tasks, or gives up workers that the job does not need.

        Returns the verdict on the job if it cannot continue: there were too many restarts, a task
        cannot be started, or a host that had some cannot be reached any more.
        """
        job, now, exits = self._job, time.monotonic(), self._tasks.exits
        cause = cause_of(exits, self._tasks.why)
        # Recoveries of workers that were given up since must not use up the restarts of
        # the others.
        began = [r.began for r in self.recoveries if not {*r.again} <= self.given_up]
        window = job.restart_window
        delay = policy.restart_delay(began, now, job.max_restarts, window)
        if job.kind == EVERY_TASK and self._can_spare(again[:1]):
            # One at a time, since they may be too few without the next.
            again = again[:1]
            cause = cause_of({task: exits[task] for task in again}, self._tasks.why)
            may_come_back = policy.may_come_back(exits[again[0]], exits)
            if not (may_come_back and job.max_restarts) or self._too_large(again):
                self._give_up(again, cause)
                return None
        elif lost := self._gone_host(delay is not None):
            there = [task for task in again if task in job.tasks_on([lost])]
            if there and self._can_spare(there):
                self._give_up(there, f"{lost} cannot be reached any more")
                return None
            why = f"{lost} cannot be reached any more: its tasks move to other hosts"
            return Verdict(policy.exit_status(policy.LOST), why, lost)
        too_large = self._too_large(again)
        if delay is not None and not too_large:
            return self._restart(again, cause, delay)
        return self._too_many(again, cause, too_large)

    def _too_many(
        self, again: tuple[Task, ...], cause: str, too_large: str
    ) -> Verdict | None:
        """Gives a worker up in place of a restart, or the whole job."""
        job = self._job
        if worker := self._worst(again):
            # One at a time: its restarts count no more, and may be enough for the rest.
            why = too_large or "--max_restarts"
            self._give_up([worker], f"{cause}; not restarting it ({why})")
            return None
        why = too_large or (
            f"the job has recovered {job.max_restarts} times within "
            f"{job.restart_window:g} s (--max_restarts, --restart_window)"
        )
        code = next(iter(self._tasks.exits.values()))
        return Verdict(
            policy.exit_status(code) or 1,
            f"{cause}; not restarting, since {why}{self.shortage(again)}",
        )

    def _too_large(self, lost: Collection[Task]) -> str:
        """Returns which lost tasks would die for their memory again, or ''."""
        now, window = time.monotonic(), self._job.restart_window
        deaths = {task: self._tasks[task].deaths for task in lost}
        tasks = [t for t in lost if policy.is_too_large(deaths[t], now, window)]
        if not tasks:
            return ""
        return (
            f"{names(tasks)} died so twice within {window:g} s (--restart_window): use a "
            "smaller batch or model, start fewer tasks on this machine, or give it more "
            "memory"
        )

    def _restart(
        self, again: tuple[Task, ...], cause: str, delay: float
    ) -> Verdict | None:
        now = time.monotonic()
        self.recoveries.append(Recovery(cause, again, now, set(again)))
        wait = f" in {delay:g} s" if delay else ""
        self._console.notice(f"{cause}: restarting {names(again)}{wait}")
        self._tasks.hide(again)
        self._end([self._tasks[task] for task in again])
        # Otherwise the old exits would still call for an end or a restart of the job.
        for task in again:
            self._tasks.exits.pop(task, None)
        self._loop.wait(lambda: bool(self._end_request), delay)
        if self._end_request:
            return None
        plans = self._job.plans
        return self._tasks.start([plan for plan in plans if plan.task in again])

    def _can_spare(self, lost: Collection[Task]) -> bool:
        job = self._job
        return policy.can_spare(job.plans, lost, self.given_up, job.needed_workers)

    def _worst(self, lost: Collection[Task]) -> Task | None:
        """Returns the lost worker to give up, which was restarted most often, if any."""
        workers = [task for task in lost if self._can_spare([task])]
        return max(workers, key=lambda each: self._tasks[each].restarts, default=None)

    def _give_up(self, lost: Collection[Task], why: str) -> None:
        """Goes on without some workers, until their host can be reached again."""
        self.given_up |= set(lost)
        self._end([self._tasks[task] for task in lost])
        self._forget_ends()
        for each in self.recoveries:
            each.waiting -= set(lost)
        self._console.notice(
            f"{why}: giving up {names(list(lost))}; the job goes on with "
            f"{self._left(())} (--min_workers={self._job.min_workers})"
        )

    def _forget_ends(self) -> None:
        """Ignores the exits of workers that were given up."""
        exits = self._tasks.exits
        for task in self.given_up & exits.keys():
            # A task that ended by itself would end again.
            if exits.pop(task) == policy.LOST and self._job.kind != EVERY_TASK:
                self._try_again_at[task] = time.monotonic() + _RECONNECT_INTERVAL

    def _try_again(self) -> None:
        """Starts workers whose hosts were lost, and welcomes those that are back."""
        now = time.monotonic()
        due = {task for task, at in self._try_again_at.items() if at <= now}
        if due and not self._end_request:
            for task in due:
                del self._try_again_at[task]
            self._tasks.start([plan for plan in self._job.plans if plan.task in due])
        for task in [*self.given_up]:
            if readiness.listens(self._tasks[task]):
                self.given_up.discard(task)
                self._console.notice(f"{task} is back: {self._left(())}")

    def _left(self, lost: Collection[Task]) -> str:
        workers = [p.task for p in self._job.plans if p.task.job == "worker"]
        left = set(workers) - self.given_up - set(lost)
        return f"{len(left)} of {len(workers)} workers"

    def shortage(self, lost: Collection[Task]) -> str:
        """Returns how many workers would be left, if that is why a job ends, or ''."""
        if self._job.min_workers is None or any(t.job != "worker" for t in lost):
            return ""
        return f"; {self._left(lost)} would be left (--min_workers={self._job.min_workers})"

    def _gone_host(self, may_try_again: bool) -> str:
        """Returns a host whose tasks must run elsewhere; '' if there is none."""
        exits = self._tasks.exits
        lost = [self._tasks[task] for task in exits if exits[task] == policy.LOST]
        reached = {each.plan.remote.host: False for each in lost if each.plan.remote}
        for each in lost:
            if each.plan.remote:
                reached[each.plan.remote.host] |= each.was_reached
        for host, was_reached in reached.items():
            self._failures[host] = 0 if was_reached else self._failures[host] + 1
            is_gone = policy.is_gone(self._failures[host], may_try_again)
            if is_gone and self._job.may_move:
                return host
        return ""

    def _end(self, tasks: list[TaskProcess]) -> None:
        for task in tasks:
            # The variables on a ps are lost to the next chief, but a script may have to
            # clean up.
            task.signal(signal.SIGKILL if task.plan.is_server else signal.SIGTERM)
        self._tasks.end(tasks, self._job.grace_period)
        self._tasks.kill(tasks)

    @property
    def interval(self) -> float:
        """The interval between calls of `check`, in seconds."""
        is_pending = any(each.waiting for each in self.recoveries) or self.given_up
        return _RECOVERY_INTERVAL if is_pending else float("inf")

    def check(self) -> None:
        """Handles reports, and looks which restarted servers listen by now."""
        self._forget_ends()
        self._try_again()
        for reporter, report in self._tasks.take_reports():
            self._hear(reporter, report)
        for each in self.recoveries:
            late = time.monotonic() - each.began > self._job.startup_timeout
            for task in [self._tasks[task] for task in each.waiting]:
                # A task that runs the script is at work when it reports a step, not
                # when it listens.
                if not task.plan.is_server or not task.alive:
                    continue
                if readiness.listens(task):
                    self._at_work(task.plan.task)
                # A task of an older recovery may have been started again since, and has
                # a later deadline.
                elif late and each is self.recoveries[-1]:
                    self._console.notice(readiness.explain_silence([task], self._job))
                    task.signal(signal.SIGKILL)

    def _hear(self, reporter: TaskProcess, report: Report) -> None:
        if report.event == contract.TRAINING:
            if not self._has_trained and reporter.plan.task == self._leader:
                self._has_trained = True
                seconds = time.monotonic() - self._began
                self._console.notice(f"first step after {seconds:.1f} s")
            self._at_work(reporter.plan.task)
        elif report.event == contract.STEPS_TAKEN:
            self._hear_progress(reporter.plan.task, report.numbers)
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
