"""Runs a whole cluster on this machine.

    python -m launch.local --num_ps=2 --num_workers=2 train.py --epochs=5

Every task is a process with a free port on 127.0.0.1. The job ends with its chief,
and its exit status is the chief's, or that of the task that failed. Of a program
that runs on the chief alone, a ps, a worker or a chief that is killed is started again;
where every task runs the script, the job ends. The flags after it are the script's.
"""

import math
import signal
from collections.abc import Sequence
from types import FrameType

from absl import flags

from launch import command_line
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
    """Runs the command, and returns the exit status of the job.

    Raises:
        UsageError: If the flags, the script or the log directory are wrong.
        PortError: If this machine has not enough free ports.
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
    """Runs a job, forwarding SIGINT and SIGTERM to it."""
    handle: Handle | None = None

    def forward(signum: int, frame: FrameType | None) -> None:
        if handle is None:
            raise SystemExit(128 + signum)
        handle.signal(signum)

    make_log_dir(job.log_dir)
    processes.adopt_orphans()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, forward)
    handle = Handle(job)
    status = handle.wait()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # It is over: keep its exit status.
    # There are some only if the supervisor itself was killed.
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
            raise UsageError(f"--{name} is a time > 0 s; received {seconds}")
    command_line.check_checkpoint_dir(values.checkpoint_dir)
    if values.num_ps and not values.num_workers:
        raise UsageError(
            f"--num_ps={values.num_ps} needs workers, which compute: give "
            "--num_workers=1 or more"
        )
    if values.num_ps and values.chief is False:
        raise UsageError(
            f"--num_ps={values.num_ps} needs a chief, which coordinates: remove "
            "--nochief, or give --num_ps=0"
        )
    if not (values.num_workers or values.chief):
        raise UsageError("nothing trains: give --num_workers=1 or more, or --chief")


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    for name, default, text in (
        ("num_ps", 2, "Number of parameter servers; 0 for workers only."),
        ("num_workers", 2, "Number of workers."),
        (
            "max_restarts",
            5,
            "How often lost tasks are started again, within --restart_window, of a "
            "program that runs on the chief alone, with ps; 0 ends the job with the "
            "first that is lost.",
        ),
    ):
        flags.DEFINE_integer(name, default, text, lower_bound=0, flag_values=values)
    for name, asked, text in (
        (
            "chief",
            None,
            "Whether there is a chief; by default in a coordinator program.",
        ),
        ("evaluator", False, "Whether there is an evaluator."),
        (
            "chatty",
            False,
            "Show the output of all tasks. By default, where every task runs the "
            "script and there is no ps, all print the same: only the first one's is "
            "shown (the chief's, or else that of worker:0), and of the others, their "
            "warnings and errors. The log files have everything.",
        ),
    ):
        flags.DEFINE_boolean(name, asked, text, flag_values=values)
    for name, seconds, text in (
        ("startup_timeout", 60.0, "Seconds within which every server has to listen."),
        ("grace_period", 10.0, "Seconds that a task told to end may take."),
        (
            "straggler_timeout",
            60.0,
            "Seconds that the others of an every-task program may take after the "
            "chief's success.",
        ),
        ("restart_window", 600.0, "Seconds within which restarts are counted."),
        (
            "stall_timeout",
            120.0,
            "Seconds that a task may be stopped or not answer, a step or the data take.",
        ),
    ):
        flags.DEFINE_float(name, seconds, text, flag_values=values)
    flags.DEFINE_integer(
        "gpus_per_worker",
        None,
        "Number of GPUs that each worker has to itself; by default all of them show to "
        "every worker.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_enum(
        "network",
        reach.AUTO,
        reach.MODES,
        "Who reaches the ports: this machine alone (loopback), nobody else, nor the "
        "job any other machine (private), or whoever reaches this machine (open); "
        "auto takes loopback where the system allows it, and else open.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "log_dir",
        None,
        "Directory of the log files; by default a new one in logs/.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "checkpoint_dir",
        None,
        "Directory from which fit of tfdist.ParameterServerStrategy goes on when the "
        "program is started again.",
        flag_values=values,
    )
    command_line.define_common(values)
    return values


def _describe(task_plan: TaskPlan) -> str:
    return f"# {task_plan.name} on {task_plan.address}\n{task_plan.shell_line()}"


if __name__ == "__main__":
    command_line.run(main, "launch.local")
