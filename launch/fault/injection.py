"""Injects the faults of a schedule into a running job, and times its recovery."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from launch.fault import checkpoint_faults, progress
from launch.fault.faults import (
    CORRUPT,
    DELAY,
    FULL_DISK,
    LETHAL_KINDS,
    PARTITION,
    SLOW,
    STOP,
    Fault,
    Schedule,
)
from launch.job.job import Job
from launch.network.impaired_links import ImpairedLinks, Impairment
from launch.remote import host
from tf_config.contract import TF_CONFIG

Tasks = dict[str, psutil.Process]


@dataclass
class Injection:
    """A fault that was injected.

    Attributes:
        fault: The fault.
        at: The time of the injection, in seconds since 1970.
        seconds: How long the job took to recover. After the death of a task, it has
            recovered once a new process is running and the script has reported a step.
            Other faults count from their end until the script has reported a step.
            None if the job ended before it had recovered.
    """

    fault: Fault
    at: float
    seconds: float | None = None


@dataclass
class _UnderWay:
    injection: Injection
    victim: psutil.Process
    undo: Callable[[], None] | None
    since: float  # The start of the recovery.
    ready: int | None = None  # The reports seen when the task was back.


def tasks_of(job: Job, supervisor: int) -> Tasks:
    """Returns the process of each running task of a job, by its name."""
    found: Tasks = {}
    plans = {plan.env.get(TF_CONFIG): plan for plan in job.plans}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(supervisor).children():
            # A task may end between the listing and this look.
            with contextlib.suppress(psutil.Error):
                plan = plans.get(child.environ().get(TF_CONFIG))
                # Between fork and exec, a child still has its parent's command line.
                if plan and tuple(child.cmdline()) == plan.argv:
                    found[plan.name] = child
    return found


@dataclass(eq=False)
class Injector:
    """Injects the faults of a schedule; call `tick` regularly."""

    _job: Job
    _supervisor: int
    _schedule: Schedule
    _progress_path: str
    _checkpoint_dir: str | None = None
    _links: ImpairedLinks | None = None

    def __post_init__(self) -> None:
        self._has_begun = False
        self._pending = list(self._schedule.faults)
        self._due: dict[int, float] = {}
        self._under_way: list[_UnderWay] = []
        self.injections: list[Injection] = []

    def tick(self) -> None:
        """Injects the faults that are due, and looks for recoveries."""
        if not (self._pending or self._under_way):
            return
        now = time.time()
        tasks = tasks_of(self._job, self._supervisor)
        reported = progress.read(self._progress_path)
        # Kept once true: later a task may be missing because of an earlier fault.
        self._has_begun |= len(tasks) == len(self._job.plans)
        for fault in list(self._pending):
            reached = self._has_begun and reported.furthest >= fault.step
            # By identity, since a schedule may contain equal faults.
            due = self._due.setdefault(id(fault), now + fault.wait) if reached else now
            if reached and now >= due and fault.task in tasks:
                self._inject(fault, tasks[fault.task])
        for each in list(self._under_way):
            self._look_after(each, tasks, len(reported.steps))

    def end(self) -> None:
        """Ends the faults that are still active."""
        for each in self._under_way:
            if each.undo:
                each.undo()
        self._under_way.clear()

    def _inject(self, fault: Fault, victim: psutil.Process) -> None:
        newest = None
        if fault.kind == CORRUPT:
            newest = checkpoint_faults.newest(self._checkpoint_dir or "")
            if newest is None:
                return  # Without an older one the job could not resume: try at the next tick.
        self._pending.remove(fault)
        now = time.time()
        undo: Callable[[], None] | None = None
        with contextlib.suppress(psutil.Error):
            if fault.kind == STOP:
                victim.suspend()
                undo = partial(_resume, victim)
            elif fault.kind == FULL_DISK:
                undo = checkpoint_faults.fill(self._checkpoint_dir or "")
            elif fault.kind in _LINKS:
                assert self._links
                undo = self._links.impair(fault.task, _LINKS[fault.kind](fault.amount))
            else:
                if newest:
                    checkpoint_faults.cut_short(newest)
                victim.kill()
        injection = Injection(fault, now)
        self.injections.append(injection)
        self._under_way.append(_UnderWay(injection, victim, undo, now))

    def _look_after(self, each: _UnderWay, tasks: Tasks, reports: int) -> None:
        fault, now = each.injection.fault, time.time()
        ends = fault.seconds > 0
        if each.undo and ends and now - each.injection.at >= fault.seconds:
            each.undo()
            each.undo, each.since = None, now
        if each.ready is None:
            # A task that is stopped forever is killed by the supervisor, which ends the
            # fault.
            lasts = each.undo is not None and each.victim.is_running()
            if not lasts and self._is_back(each, tasks):
                each.ready = reports
        elif reports > each.ready:
            each.injection.seconds = now - each.since
            self._under_way.remove(each)

    def _is_back(self, each: _UnderWay, tasks: Tasks) -> bool:
        name = each.injection.fault.task
        if name not in tasks:
            return False
        if each.injection.fault.kind not in LETHAL_KINDS:
            return True
        [plan] = [plan for plan in self._job.plans if plan.name == name]
        process = tasks[name]
        listens = not plan.is_server or host.listens(process.pid, plan.port)
        # psutil compares creation times too, so a reused process id is a new process.
        return process != each.victim and listens


_LINKS: dict[str, Callable[[float], Impairment]] = {
    PARTITION: lambda _: Impairment(is_cut=True),
    DELAY: lambda amount: Impairment(delay=amount),
    SLOW: lambda amount: Impairment(rate=amount),
}


def _resume(victim: psutil.Process) -> None:
    # The supervisor may have killed it in the meantime.
    with contextlib.suppress(psutil.Error):
        victim.resume()
