"""Runs a cluster on this machine.

    python -m launch.local --num_ps=2 --num_workers=2 train.py --epochs=5

Each task is a process with a free port on 127.0.0.1. The job ends when its chief ends,
with the chief's exit status, or with the status of the first task that failed. If only
the chief runs the script, a chief, ps or worker that is killed is restarted; if every
task runs the script, all of them are, given --checkpoint_dir, or else the job ends. Flags
after the script belong to the script.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from launch.engines.engine import tell
from launch.flags import cluster_flags, command_line, paths
from launch.flags.values import Flags
from launch.job import forking
from launch.job.job import Job
from launch.job.plan import Program
from launch.job.script_source import kind_of_script
from launch.loopback import foreground
from launch.loopback.cluster import (
    at_free_ports,
    local_cluster,
    make_job,
    run_job,
    servers,
)
from launch.network import reach
from launch.remote.memory import measure
from tf_config import Cluster

_LEAST_MEMORY = 150_000_000  # bytes of a forked task with a tiny model, as measured

__all__ = ["local_cluster", "main", "make_job", "run_job", "servers"]


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, define_flags(), __doc__ or "")
    job = job_of(values, program)
    if values.dry_run:
        print(describe(job))
        return 0
    memory = measure().limit
    if notice := crowding(job, len(os.sched_getaffinity(0)), memory):
        tell("local", notice)
    return foreground.run(job)


def crowding(job: Job, cores: int, memory: int) -> str:
    """Returns a warning if a job has many more workers than a machine has cores, or ''.

    Args:
        job: The job.
        cores: The number of cores.
        memory: The bytes of memory.
    """
    workers = sum(plan.task.job == "worker" for plan in job.plans)
    if workers <= 4 * cores:
        return ""
    return (
        f"WARNING: {workers} workers share {cores} cores, and the {len(job.plans)} tasks "
        f"need {len(job.plans) * _LEAST_MEMORY / 1e9:.0f} GB and more, of "
        f"{memory / 1e9:.0f} GB here: start fewer"
    )


def job_of(
    values: Flags,
    program: Program,
    make_cluster: Callable[[Mapping[str, int]], Cluster] = at_free_ports,
) -> Job:
    """Returns the job that the flags ask for.

    Raises:
        UsageError: If the flags, the script or the checkpoint directory are wrong.
        PortError: If this machine has too few free ports.
        PlatformError: If this machine does not run Linux.
    """
    command_line.check_script(program)
    command_line.check_backend()
    cluster_flags.check(values, workers_may_leave=True)
    paths.check_checkpoint_dir(values.checkpoint_dir, not values.dry_run)
    paths.check_output(values.timeline, "timeline")
    kind = kind_of_script(program, values.program, values.num_ps)
    return make_job(
        make_cluster(cluster_flags.counts(values, kind)),
        program,
        kind,
        log_dir=values.log_dir,
        gpus_per_worker=values.gpus_per_worker,
        network=values.network,
        fork_server=values.fork_server,
        checkpoint_dir=values.checkpoint_dir,
        timeline=values.timeline,
        **cluster_flags.limits(values),
    )


def define_flags() -> Flags:
    """Returns the flags of a cluster on this machine, with their defaults."""
    values = Flags()
    values.integer(
        "gpus_per_worker",
        None,
        "Number of GPUs to reserve for each worker. By default every worker sees all "
        "GPUs.",
        lower_bound=0,
    )
    values.choice(
        "network",
        reach.AUTO,
        reach.MODES,
        "Who can reach the job's ports: processes on this machine (loopback), only the "
        "job itself, which then cannot reach other machines (private), or every machine "
        "that can reach this one (open). auto means loopback if the system allows it, "
        "and open otherwise.",
    )
    values.choice(
        "fork_server",
        forking.AUTO,
        forking.MODES,
        "Whether tasks are forked from a process that has imported TensorFlow, which "
        "starts them in a fraction of the time: where it is safe (on), never (off), or "
        "where it is safe for two tasks or more (auto).",
    )
    values.text(
        "timeline",
        None,
        "File for a trace of when each step of fit of tfdist.ParameterServerStrategy waited, "
        "pulled, computed, pushed and wrote. Perfetto (https://ui.perfetto.dev) shows it.",
    )
    cluster_flags.define(values)
    return values


def describe(job: Job) -> str:
    """Returns each task as a line to paste into a shell, below its name."""
    return "\n".join(line for plan in job.plans for line in plan.lines)


if __name__ == "__main__":
    command_line.run(main, "launch.local")
