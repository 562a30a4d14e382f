r"""Starts one task of a cluster on this host.

    python -m launch.task --job_name=ps --task_index=0 --chief_hosts=a:2222 \
        --ps_hosts=b:2222 --worker_hosts=c:2222,d:2222 train.py --epochs=5

Run the same command on every host, each with its own --job_name and --task_index.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags

from launch import command_line, gpus
from launch.command_line import UsageError
from launch.network import reach
from launch.plan import TaskPlan, plan, without_proxy
from launch.program_kind import kind_of_script
from tf_config import JOBS, Cluster, Task


def main(argv: Sequence[str]) -> int:
    """Replaces this process with the task, or prints the task's command.

    Returns:
        0 after a dry run; otherwise it does not return.

    Raises:
        UsageError: If the flags or the script are wrong.
        ClusterError: If the hosts are not a valid cluster that contains this task.
        PlanError: If the program does not fit the cluster.
    """
    values, task_plan = _plan_task(argv)
    if values.dry_run:
        print(task_plan.shell_line())
    else:
        for notice in (reach.exposure(task_plan), _misplaced(task_plan)):
            if notice:
                print(f"launch.task: {notice}", file=sys.stderr, flush=True)
        if task_plan.is_server:
            print(
                f"launch.task: {task_plan.name} is serving on {task_plan.address} until it "
                "is killed; training begins once every task is running",
                file=sys.stderr,
                flush=True,
            )
        environ = {**os.environ, **task_plan.env}
        os.execve(task_plan.argv[0], task_plan.argv, environ)
    return 0


def _plan_task(argv: Sequence[str]) -> tuple[flags.FlagValues, TaskPlan]:
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    hosts = {job: getattr(values, f"{job}_hosts") for job in JOBS}
    cluster = Cluster.from_hosts(**hosts)
    task = _task(cluster, values.job_name, values.task_index)
    cluster.address(task)
    kind = kind_of_script(program.script, values.program)
    plans = without_proxy(plan(cluster, program, kind), os.environ)
    task_plan = next(each for each in plans if each.task == task)
    if values.gpus is not None:
        task_plan = gpus.showing(task_plan, values.gpus)
    # A server does not run the script, so its host does not need a copy.
    if not task_plan.is_server:
        command_line.check_script(program.script)
    return values, task_plan


def _misplaced(task_plan: TaskPlan) -> str:
    """Returns a warning if the task's address belongs to another machine, or ''."""
    if task_plan.task.job == "evaluator" or reach.is_here(task_plan.address):
        return ""
    return (
        f"WARNING: {task_plan.address} is not an address of this machine. Unless it is "
        f"forwarded here, start {task_plan.name} on the machine with that address"
    )


def _task(cluster: Cluster, job: str | None, index: int | None) -> Task:
    if job is None:
        raise UsageError(
            f"--job_name is missing: give the job of this task, one of {', '.join(JOBS)}"
        )
    if index is None and job in ("chief", "evaluator"):
        index = 0
    if index is None:
        raise UsageError(
            f"--task_index is missing: give the index of this {job}, 0 for the first"
        )
    return Task(job, index)


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    command_line.define_task(values)
    flags.DEFINE_list(
        "gpus",
        None,
        "GPUs of this host that the task can use, as in CUDA_VISIBLE_DEVICES. By "
        "default all.",
        flag_values=values,
    )
    command_line.define_common(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.task")
