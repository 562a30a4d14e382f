"""Runs a cluster on this machine.

    python -m launch.local --num_ps=2 --num_workers=2 train.py --epochs=5

Each task is a process with a free port on 127.0.0.1. The job ends when its chief ends,
with the chief's exit status, or with the status of the first task that failed. If only
the chief runs the script, a chief, ps or worker that is killed is restarted; if every
task runs the script, the job ends. Flags after the script belong to the script.
"""

import math
import signal
from collections.abc import Sequence
from types import FrameType

from absl import flags

from launch import command_line, forking
from launch.command_line import UsageError
from launch.job import Job
from launch.loopback import local_cluster, make_job, make_log_dir, run, servers
from launch.network import reach
from launch.plan import COORDINATOR, TaskPlan
from launch.program_kind import kind_of_script
from launch.supervise import processes
from launch.supervise.handle import Handle

__all__ = ["local_cluster", "main", "make_job", "run", "servers"]


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises:
        UsageError: If the flags, the script or the log directory are wrong.
        PortError: If this machine has too few free ports.
        PlatformError: If this machine does not run Linux.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    command_line.check_script(program.script)
    _check(values)
    kind = kind_of_script(program.script, values.program)
    coordinated = values.num_ps > 0 or kind == COORDINATOR
    cluster = local_cluster(
        values.num_ps,
        values.num_workers,
        chief=coordinated if values.chief is None else values.chief,
        evaluator=values.evaluator,
    )
    job = make_job(
        cluster,
        program,
        kind,
        log_dir=values.log_dir,
        gpus_per_worker=values.gpus_per_worker,
        startup_timeout=values.startup_timeout,
        grace_period=values.grace_period,
        straggler_timeout=values.straggler_timeout,
        network=values.network,
        fork_server=values.fork_server,
        max_restarts=values.max_restarts,
        restart_window=values.restart_window,
        stall_timeout=values.stall_timeout,
        checkpoint_dir=values.checkpoint_dir,
        chatty=values.chatty,
    )
    if values.dry_run:
        print("\n".join(map(_describe, job.plans)))
        return 0
    return _run_in_foreground(job)


def _run_in_foreground(job: Job) -> int:
    """Runs a job, and forwards SIGINT and SIGTERM to it."""
    handle: Handle | None = None

    def forward(signum: int, frame: FrameType | None) -> None:
        if handle is None:
            # Nothing has been started yet that would have to end first.
            raise SystemExit(128 + signum)
        handle.signal(signum)

    make_log_dir(job.log_dir)
    processes.adopt_orphans()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, forward)
    handle = Handle(job)
    status = handle.wait()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            signum, signal.SIG_IGN
        )  # The job has ended: do not lose its exit status.
    # Only a supervisor that was killed leaves tasks behind.
    processes.kill_descendants(job.grace_period)
    return status


def _check(values: flags.FlagValues) -> None:
    for name in (
        "startup_timeout",
        "grace_period",
        "straggler_timeout",
        "restart_window",
        "stall_timeout",
    ):
        seconds = getattr(values, name)
        if not 0 < seconds < math.inf:
            raise UsageError(f"--{name} must be > 0 seconds; received {seconds}")
    command_line.check_checkpoint_dir(values.checkpoint_dir)
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
    if not (values.num_workers or values.chief):
        raise UsageError(
            "no task trains: set --num_workers to 1 or more, or add --chief"
        )


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    for name, default, text in (
        ("num_ps", 2, "Number of parameter servers (ps)."),
        ("num_workers", 2, "Number of workers."),
        (
            "max_restarts",
            5,
            "How many times to restart lost tasks within --restart_window, if only the "
            "chief runs the script and there are ps. With 0, the first lost task ends "
            "the job.",
        ),
    ):
        flags.DEFINE_integer(name, default, text, lower_bound=0, flag_values=values)
    for name, asked, text in (
        (
            "chief",
            None,
            "Start a chief. By default, if only the chief runs the script.",
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
    ):
        flags.DEFINE_boolean(name, asked, text, flag_values=values)
    for name, seconds, text in (
        ("startup_timeout", 60.0, "Seconds within which every server must listen."),
        (
            "grace_period",
            10.0,
            "Seconds that a task may take to end before it is killed.",
        ),
        (
            "straggler_timeout",
            60.0,
            "Seconds that the other tasks may take to end after the chief has succeeded, "
            "if every task runs the script.",
        ),
        ("restart_window", 600.0, "Seconds over which --max_restarts counts."),
        (
            "stall_timeout",
            120.0,
            "Seconds after which training counts as stalled: a task is stopped or does "
            "not respond, or a step or a batch takes that long.",
        ),
    ):
        flags.DEFINE_float(name, seconds, text, flag_values=values)
    flags.DEFINE_integer(
        "gpus_per_worker",
        None,
        "Number of GPUs to reserve for each worker. By default every worker sees all "
        "GPUs.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_enum(
        "network",
        reach.AUTO,
        reach.MODES,
        "Who can reach the job's ports: processes on this machine (loopback), only the "
        "job itself, which then cannot reach other machines (private), or every machine "
        "that can reach this one (open). auto means loopback if the system allows it, "
        "and open otherwise.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "fork_server",
        forking.AUTO,
        forking.MODES,
        "Whether tasks are forked from a process that has imported TensorFlow, which "
        "starts them in a fraction of the time: where it is safe (on), never (off), or "
        "where it is safe and two tasks or more import TensorFlow (auto).",
        flag_values=values,
    )
    flags.DEFINE_string(
        "log_dir",
        None,
        "Directory for the log files. By default a new one under logs/.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "checkpoint_dir",
        None,
        "Directory for the checkpoints from which fit of tfdist.ParameterServerStrategy "
        "resumes after a restart.",
        flag_values=values,
    )
    command_line.define_common(values)
    return values


def _describe(task_plan: TaskPlan) -> str:
    return f"# {task_plan.name} on {task_plan.address}\n{task_plan.shell_line()}"


if __name__ == "__main__":
    command_line.run(main, "launch.local")
