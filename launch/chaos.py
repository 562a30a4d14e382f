"""Runs a script on a local cluster, and injects faults on a reproducible schedule.

    python -m launch.chaos --seed=7 --steps=500 train.py --epochs=5

Each fault strikes once the script has reported a certain step. Afterwards the command
checks that the job ended, that no step was lost, that the newest checkpoint can be
read, and that no process is left. The exit status is 0 if all of this holds, and 1 if
not. docs/chaos.md says what the script must report.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import rich
import rich.box
import rich.markup
import rich.table
from absl import flags

from launch import command_line
from launch.command_line import UsageError
from launch.fault import checkpoint_faults, faults, invariants
from launch.fault import progress as progress_reports
from launch.fault.faults import Fault, FaultError, Schedule, draw
from launch.fault.injection import Injection, Injector, tasks_of
from launch.fault.invariants import Ending, Invariant
from launch.fault.progress import Progress, report_result, report_step
from launch.job import Job
from launch.loopback import local_cluster, make_job, make_log_dir
from launch.network import reach
from launch.network.links import Links, through_links
from launch.supervise.handle import Handle
from launch.supervise.processes import describe
from tf_config import contract

__all__ = [
    "Fault",
    "FaultError",
    "Outcome",
    "Schedule",
    "draw",
    "main",
    "report_result",
    "report_step",
    "run",
]

Check = Callable[[], Invariant]
_TICK = 0.1  # seconds
_MOST_FAULTS = 1000
_LEAVING = 5.0  # seconds for the last processes to disappear
# The library knows the format of its checkpoints, and the launcher does not.
_CHECK_CHECKPOINTS = ("-m", contract.CHECKPOINT_MODULE)


@dataclass(frozen=True)
class Outcome:
    """The result of a job under faults.

    Attributes:
        schedule: The planned faults.
        ending: How the job ended.
        injections: The faults that were injected, with the time to recover from each.
        invariants: What must hold, and whether it does.
    """

    schedule: Schedule
    ending: Ending
    injections: tuple[Injection, ...]
    invariants: tuple[Invariant, ...]

    @property
    def holds(self) -> bool:
        """Whether all invariants hold."""
        return not invariants.broken(self.invariants)

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
    job = _prepared(job, schedule, checkpoint_dir)
    # Absolute, since the script may change its directory.
    path = os.path.join(os.path.abspath(job.log_dir), "progress.jsonl")
    make_log_dir(job.log_dir)
    # The directory may be that of an earlier job, whose reports would count as this
    # one's.
    Path(path).unlink(missing_ok=True)
    env = {contract.PROGRESS: path}
    plans = tuple(replace(each, env={**each.env, **env}) for each in job.plans)
    job = replace(job, plans=plans)
    status: int | None = None
    reasons: list[str] = []
    began = time.monotonic()
    with Handle(job) as handle, _links(job, schedule, handle.pid) as links:
        # A thread, since waiting for an event blocks, and faults are due meanwhile.
        listener = threading.Thread(target=_hear, args=(handle, reasons))
        listener.start()
        injector = Injector(job, handle.pid, schedule, path, checkpoint_dir, links)
        while status is None and time.monotonic() - began < deadline:
            injector.tick()
            status = handle.poll(_TICK)
        # Before the job ends, since a stopped task does not handle SIGTERM.
        injector.end()
        seconds = time.monotonic() - began
        handle.stop()
        listener.join()
    ending = Ending(
        status,
        "; ".join(reasons),
        seconds,
        len(injector.injections),
        progress_reports.read(path),
        tuple(_left(path)),
    )
    found = [*invariants.judge(ending, may_fail), *(check() for check in checks)]
    return Outcome(schedule, ending, tuple(injector.injections), tuple(found))


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


@contextlib.contextmanager
def _links(job: Job, schedule: Schedule, supervisor: int) -> Iterator[Links | None]:
    if not schedule.kinds & faults.LINK_KINDS:
        yield None
        return
    ports = {plan.name: plan.port for plan in job.plans}
    with Links(ports, lambda: tasks_of(job, supervisor)) as links:
        yield links


def _hear(handle: Handle, reasons: list[str]) -> None:
    while event := handle.next_event():
        if "error" in event:
            reasons.append(event["error"])


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


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises:
        UsageError: If the flags or the script are wrong.
        FaultError: If the schedule does not fit the job or this machine.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    command_line.check_script(program)
    command_line.check_checkpoint_dir(values.checkpoint_dir)
    cluster = local_cluster(values.num_ps, values.num_workers)
    job = make_job(
        cluster,
        program,
        values.program,
        log_dir=values.log_dir,
        max_restarts=values.max_restarts,
        stall_timeout=values.stall_timeout,
        checkpoint_dir=values.checkpoint_dir,
    )
    schedule = _schedule(values, [plan.name for plan in job.plans])
    if values.dry_run:
        print(schedule.to_json())
        return 0
    checkpoint_dir = values.checkpoint_dir
    outcome = run(
        job,
        schedule,
        deadline=values.deadline,
        checkpoint_dir=checkpoint_dir,
        checks=[lambda: _checkpoint(checkpoint_dir)] if checkpoint_dir else [],
        may_fail=values.may_fail,
    )
    for table in (_injection_table(outcome), _invariant_table(outcome)):
        rich.print(table)
    return 0 if outcome.holds else 1


def _schedule(values: flags.FlagValues, tasks: Sequence[str]) -> Schedule:
    if values.schedule:
        try:
            return Schedule.from_json(Path(values.schedule).read_bytes())
        except OSError as error:
            raise UsageError(
                f"cannot read --schedule={values.schedule}: {error.strerror}"
            ) from None
    if not values.kinds:
        raise UsageError(
            f"--kinds is empty: choose from {', '.join(faults.FAULT_KINDS)}"
        )
    return draw(values.seed, tasks, values.steps, values.kinds, values.faults)


def _checkpoint(directory: str) -> Invariant:
    done = subprocess.run(
        [sys.executable, *_CHECK_CHECKPOINTS, directory],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout or done.stderr).strip().rpartition("\n")[2]
    return Invariant("the newest checkpoint can be read", done.returncode == 0, said)


def _injection_table(outcome: Outcome) -> rich.table.Table:
    seed = outcome.schedule.seed
    table = rich.table.Table(
        box=rich.box.ROUNDED,
        title="Faults" if seed is None else f"Faults of seed {seed}",
    )
    for heading in ("step", "fault", "recovered after"):
        table.add_column(heading)
    for each in outcome.injections:
        seconds = each.seconds
        took = "- (job ended first)" if seconds is None else f"{seconds:.1f} s"
        table.add_row(str(each.fault.step), str(each.fault), took)
    happened = [each.fault for each in outcome.injections]
    for fault in outcome.schedule.faults:
        if fault not in happened:
            table.add_row(str(fault.step), str(fault), "not injected")
    return table


def _invariant_table(outcome: Outcome) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.ROUNDED, title="Invariants")
    for heading in ("invariant", "holds", "observed"):
        table.add_column(heading)
    for each in outcome.invariants:
        holds = "yes" if each.holds else "[red]NO[/red]"
        table.add_row(each.name, holds, rich.markup.escape(each.seen))
    return table


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    for name, default, least, text in (
        ("seed", 0, 0, "Seed of the fault schedule."),
        (
            "steps",
            100,
            1,
            "Number of steps the script reports, over which to spread the faults.",
        ),
        ("num_ps", 2, 1, "Number of parameter servers."),
        ("num_workers", 2, 1, "Number of workers."),
        ("max_restarts", 5, 0, "How many times to restart lost tasks."),
    ):
        flags.DEFINE_integer(name, default, text, lower_bound=least, flag_values=values)
    flags.DEFINE_integer(
        "faults",
        2,
        "Number of faults.",
        lower_bound=0,
        upper_bound=_MOST_FAULTS,
        flag_values=values,
    )
    flags.DEFINE_list(
        "kinds",
        [faults.KILL, faults.STOP],
        f"Kinds of fault to choose from: any of {', '.join(faults.FAULT_KINDS)}.",
        flag_values=values,
    )
    for name, seconds, text in (
        ("deadline", 600.0, "Seconds within which the job must end."),
        ("stall_timeout", 60.0, "Seconds after which a stopped task counts as lost."),
    ):
        flags.DEFINE_float(name, seconds, text, lower_bound=1.0, flag_values=values)
    flags.DEFINE_boolean(
        "may_fail",
        False,
        "Accept a job that ends with an error, provided it says why.",
        flag_values=values,
    )
    for name, text in (
        ("schedule", "File with the schedule to use, in the format --dry_run prints."),
        ("checkpoint_dir", "Directory for the script's checkpoints."),
        ("log_dir", "Directory for the log files. By default a new one under logs/."),
    ):
        flags.DEFINE_string(name, None, text, flag_values=values)
    command_line.define_common(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.chaos")
