"""Runs a job while faults of a schedule strike it, and judges how it ended."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from launch.fault import checkpoint_faults, faults, invariants
from launch.fault import progress as progress_reports
from launch.fault.faults import FaultError, Schedule
from launch.fault.injection import Injection, Injector, tasks_of
from launch.fault.invariants import Ending, Invariant
from launch.fault.progress import Progress
from launch.job.job import Job
from launch.job.plan import TaskPlan
from launch.loopback.cluster import make_log_dir
from launch.network import reach
from launch.network.impaired_links import ImpairedLinks, through
from launch.supervise.handle import Handle
from launch.supervise.processes import describe
from tf_config import contract

Check = Callable[[], Invariant]
_TICK = 0.1  # seconds
_LEAVING = 5.0  # seconds for the last processes to disappear


@dataclass(frozen=True)
class Outcome:
    """The result of a job under faults.

    Attributes:
        schedule: The planned faults.
        ending: How the job ended.
        injections: The faults that were injected, with the time to recover from each.
        invariants: Each invariant, and whether it holds.
    """

    schedule: Schedule
    ending: Ending
    injections: tuple[Injection, ...]
    invariants: tuple[Invariant, ...]

    @property
    def holds(self) -> bool:
        """True if all invariants hold."""
        return all(each.holds for each in self.invariants)

    @property
    def progress(self) -> Progress:
        """The steps and the result that the script has reported."""
        return self.ending.progress


def run(
    job: Job,
    schedule: Schedule,
    *,
    deadline: float = 600.0,
    checkpoint_dir: str | None = None,
    checks: Sequence[Check] = (),
    may_fail: bool = False,
) -> Outcome:
    """Runs a job, and injects the faults of a schedule into it.

    Args:
        job: From `launch.make_job`. The script's reports go to its log directory.
        schedule: From `draw`, or written by hand.
        deadline: Seconds after which the job is ended.
        checkpoint_dir: The script's; required by faults of checkpoints.
        checks: Further invariants, checked when the job is over.
        may_fail: Whether the job may end with an error, provided it gives a reason.

    Raises:
        FaultError: If the schedule does not fit the job or this machine.
        LogDirError: If the log directory cannot be written.
    """
    # Absolute, since the script may change its directory.
    path = os.path.join(os.path.abspath(job.log_dir), "progress.jsonl")
    job = _reporting(_prepared(job, schedule, checkpoint_dir), path)
    status: int | None = None
    reasons: list[str] = []
    began = time.monotonic()
    with Handle(job) as handle, _links(job, schedule, handle.pid) as links:
        # A thread, since waiting for an event blocks, and faults are due meanwhile.
        listener = handle.watch(
            lambda event: reasons.append(event["error"]) if "error" in event else None
        )
        injector = Injector(job, handle.pid, schedule, path, checkpoint_dir, links)
        while status is None and time.monotonic() - began < deadline:
            injector.tick()
            status = handle.poll(_TICK)
        # Before the job ends, since a stopped task does not handle SIGTERM.
        injector.end()
        seconds = time.monotonic() - began
        handle.stop()
        listener.join()
    progress, left = progress_reports.read(path), tuple(_left(path))
    count = len(injector.injections)
    ending = Ending(status, "; ".join(reasons), seconds, count, progress, left)
    found = [*invariants.judge(ending, may_fail), *(check() for check in checks)]
    return Outcome(schedule, ending, tuple(injector.injections), tuple(found))


def _reporting(job: Job, path: str) -> Job:
    make_log_dir(job.log_dir)
    # The directory may be that of an earlier job, whose reports would count as this one's.
    Path(path).unlink(missing_ok=True)
    plans = tuple(each.telling({contract.PROGRESS: path}) for each in job.plans)
    return replace(job, plans=plans)


def _prepared(job: Job, schedule: Schedule, checkpoint_dir: str | None) -> Job:
    names = {plan.name for plan in job.plans}
    for fault in schedule.faults:
        if fault.task not in names:
            raise FaultError(
                f"there is no {fault.task} in this job: choose one of "
                f"{', '.join(sorted(names))}"
            )
    if schedule.kinds & faults.CHECKPOINT_KINDS and not checkpoint_dir:
        raise FaultError(
            f"{' and '.join(sorted(schedule.kinds & faults.CHECKPOINT_KINDS))} need "
            "the directory of the checkpoints: set --checkpoint_dir"
        )
    if faults.FULL_DISK in schedule.kinds:
        checkpoint_faults.check_can_be_filled(checkpoint_dir or "")
    if schedule.kinds & faults.LINK_KINDS:
        if job.network not in (reach.AUTO, reach.LOOPBACK):
            raise FaultError(
                "faults of links need ports that are closed to other machines: set "
                f"network='loopback'; received {job.network!r}"
            )
        plans = tuple(map(through_links, job.plans))
        job = replace(job, plans=plans, network=reach.LOOPBACK)
    return job


def _links(
    job: Job, schedule: Schedule, supervisor: int
) -> contextlib.AbstractContextManager[ImpairedLinks | None]:
    if not schedule.kinds & faults.LINK_KINDS:
        return contextlib.nullcontext()
    ports = {plan.name: plan.port for plan in job.plans}
    return ImpairedLinks(ports, lambda: tasks_of(job, supervisor))


def _left(mark: str) -> list[str]:
    deadline = time.monotonic() + _LEAVING
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(_TICK)
    return [describe(process.pid) for process in found]


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # Every descendant inherits the variable, even one that has left the job's
            # sessions.
            if process.environ().get(contract.PROGRESS) == mark:
                found.append(process)
    return found


def through_links(plan: TaskPlan) -> TaskPlan:
    """Returns the plan of a task that reaches the others at `HOST`."""
    told = {contract.TF_CONFIG: through(plan.env[contract.TF_CONFIG])}
    return replace(plan.telling(told), address=through(plan.address))
