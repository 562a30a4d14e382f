"""The flags of a whole cluster: how many tasks, and how long to wait for them."""

import math
from typing import Any

from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.plan import COORDINATOR
from launch.job.script_source import DEFAULT_PS
from launch.supervise import progress

_NUMBERS = (
    (
        "num_ps",
        None,
        f"Number of parameter servers (ps). By default {DEFAULT_PS}, or 0 for a script "
        "whose strategy has none.",
    ),
    ("num_workers", 2, "Number of workers."),
    (
        "max_restarts",
        5,
        "How many times to restart lost tasks within --restart_window: if only the "
        "chief runs the script, with --checkpoint_dir, or with --min_workers. With 0, "
        "the first lost task ends the job, or is given up with --min_workers.",
    ),
)
_SWITCHES = (
    (
        "chief",
        None,
        "Start a chief. Default: true for coordinator programs, else false.",
    ),
    ("evaluator", False, "Start an evaluator."),
    (
        "chatty",
        False,
        "Show the output of every task. By default, if every task runs the script "
        "and there are no ps, only the first task's output is shown (the chief's, or "
        "else worker:0's), with the warnings and errors of the others. The log files "
        "always contain everything.",
    ),
)
_SECONDS = (
    ("startup_timeout", 60.0, "Seconds within which every server must listen."),
    (
        "grace_period",
        10.0,
        "Seconds that a task may take to end before it is killed.",
    ),
    (
        "straggler_timeout",
        60.0,
        "Seconds that the other tasks that run the script, such as the evaluator, may "
        "take to end after the chief has succeeded.",
    ),
    ("restart_window", 600.0, "Seconds over which --max_restarts counts."),
    (
        "stall_timeout",
        120.0,
        "Seconds after which training counts as stalled: a task is stopped or does "
        "not respond, or a step or a batch takes that long.",
    ),
)


def define(values: Flags) -> None:
    """Defines the flags, and those of every command that starts a script."""
    for name, default, text in _NUMBERS:
        values.integer(name, default, text, lower_bound=0)
    values.integer(
        "min_workers",
        None,
        "How many workers are enough. With ps, to start and to go on: the others join the "
        "running program when they come, and one that cannot be restarted is given up. "
        "Without ps, to go on: a worker that fails is given up, and one that was killed is "
        "restarted (--max_restarts). By default, all.",
        lower_bound=1,
    )
    for name, asked, text in _SWITCHES:
        values.switch(name, asked, text)
    for name, seconds, text in _SECONDS:
        values.number(name, seconds, text)
    values.text(
        "log_dir",
        None,
        "Directory for the log files. By default a new one under logs/, where the last 20 "
        "remain.",
    )
    values.text(
        "checkpoint_dir",
        None,
        "Directory for the checkpoints from which fit of tfdist's strategies resumes after "
        "a restart. If every task runs the script, a killed one is restarted only with "
        "this flag, and all others with it.",
    )
    values.choice(
        "progress",
        progress.AUTO,
        progress.MODES,
        "Whether the last line on a terminal shows how fast fit trains: steps per second, "
        "each worker's share of the steps, staleness, restarts; elsewhere, each minute.",
    )
    command_line.define_common(values)


def limits(values: Flags) -> dict[str, Any]:
    """Returns the values that are attributes of a `Job` of the same names."""
    names = [name for name, *_ in _SECONDS]
    names += ["max_restarts", "min_workers", "chatty", "progress"]
    return {name: values[name].value for name in names}


def counts(values: Flags, kind: str) -> dict[str, int]:
    """Returns how many tasks there are of each job."""
    coordinated = values.num_ps > 0 or kind == COORDINATOR
    return {
        "chief": int(coordinated if values.chief is None else values.chief),
        "ps": values.num_ps,
        "worker": values.num_workers,
        "evaluator": int(values.evaluator),
    }


def check(values: Flags, workers_may_leave: bool = False) -> None:
    """Checks the values that no parser can reject by itself."""
    for name, *_ in _SECONDS:
        check_seconds(name, values[name].value)
    if values.num_ps and not values.num_workers:
        raise UsageError(
            f"--num_ps={values.num_ps} needs workers to compute the steps: set "
            "--num_workers to 1 or more"
        )
    if values.num_ps and values.chief is False:
        raise UsageError(
            f"--num_ps={values.num_ps} needs a chief to coordinate the workers: remove "
            "--nochief, or set --num_ps=0"
        )
    least = values.min_workers
    if least is not None and not (values.num_ps or workers_may_leave):
        raise UsageError(
            f"--min_workers={least} needs parameter servers here: set --num_ps to 1 or "
            "more, or omit --min_workers. launch.local goes on without workers of "
            "tfdist.LocalUpdateStrategy"
        )
    if least is not None and least > values.num_workers:
        raise UsageError(
            f"--min_workers={least} is more than --num_workers={values.num_workers}: "
            f"choose 1 to {values.num_workers}"
        )
    if not (values.num_workers or values.chief):
        raise UsageError(
            "no task trains: set --num_workers to 1 or more, or add --chief"
        )


def check_seconds(name: str, seconds: Any) -> None:
    """Checks the value of a flag that is a time."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"--{name} must be > 0 seconds; received {seconds}")
