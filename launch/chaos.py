"""Runs a script on a local cluster, and injects faults on a reproducible schedule.

    python -m launch.chaos --seed=7 --steps=500 train.py --epochs=5

It takes the flags of launch.local, too. Each fault strikes once the script has reported a
certain step. Afterwards the command checks that the job ended, that no step was lost, that
the newest checkpoint can be read, and that no process is left. The exit status is 0 if all
of this holds, and 1 if not. docs/chaos.md says what the script must report.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rich
import rich.box
import rich.markup
import rich.table

from launch import local
from launch.fault import faults
from launch.fault.experiment import Outcome, run
from launch.fault.faults import Fault, FaultError, Schedule, draw
from launch.fault.invariants import Invariant
from launch.fault.progress import report_result, report_step
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
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

_MOST_FAULTS = 1000
# The library knows the format of its checkpoints, and the launcher does not.
_CHECK_CHECKPOINTS = ("-m", contract.CHECKPOINT_MODULE)


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    if not values.num_ps:
        raise UsageError(
            "--num_ps must be 1 or more, since the faults are those of a program with "
            "parameter servers; received 0"
        )
    job = local.job_of(values, program)
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


def _schedule(values: Flags, tasks: Sequence[str]) -> Schedule:
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


def _table(title: str, *headings: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.ROUNDED, title=title)
    for heading in headings:
        table.add_column(heading)
    return table


def _injection_table(outcome: Outcome) -> rich.table.Table:
    seed = outcome.schedule.seed
    title = "Faults" if seed is None else f"Faults of seed {seed}"
    table = _table(title, "step", "fault", "recovered after")
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
    table = _table("Invariants", "invariant", "holds", "observed")
    for each in outcome.invariants:
        holds = "yes" if each.holds else "[red]NO[/red]"
        table.add_row(each.name, holds, rich.markup.escape(each.seen))
    return table


def _define_flags() -> Flags:
    values = local.define_flags()
    values.set_default("num_ps", 2)
    values.set_default("stall_timeout", 60.0)
    values.integer("seed", 0, "Seed of the fault schedule.", lower_bound=0)
    values.integer(
        "steps",
        100,
        "Number of steps the script reports, over which to spread the faults.",
        lower_bound=1,
    )
    values.integer(
        "faults", 2, "Number of faults.", lower_bound=0, upper_bound=_MOST_FAULTS
    )
    values.texts(
        "kinds",
        [faults.KILL, faults.STOP],
        f"Kinds of fault to choose from: any of {', '.join(faults.FAULT_KINDS)}.",
    )
    values.number(
        "deadline", 600.0, "Seconds within which the job must end.", lower_bound=1.0
    )
    values.switch(
        "may_fail", False, "Accept a job that ends with an error, provided it says why."
    )
    values.text(
        "schedule",
        None,
        "File with the schedule to use, in the format --dry_run prints.",
    )
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.chaos")
