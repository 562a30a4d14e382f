r"""Starts one task of a cluster on this host.

    python -m launch.task --job_name=ps --task_index=0 --chief_hosts=a:2222 \
        --ps_hosts=b:2222 --worker_hosts=c:2222,d:2222 train.py --epochs=5

Run the same command on every host, each with its own --job_name and --task_index. Or
without those and without hosts, where SageMaker, Slurm's srun, Kubeflow's TFJob or Ray
Train has started this process, and says in its environment which others there are:

    python -m launch.task --num_ps=2 train.py --epochs=5
"""

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from launch.engines.engine import tell
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job import gpus
from launch.job.plan import TaskPlan, plan, without_proxy
from launch.job.script_source import kind_of_script
from launch.network import reach
from launch.supervise import serving
from tf_config import JOBS, Cluster, ClusterError, Task, TFConfig, engines

_tell = partial(tell, "task")


def main(argv: Sequence[str]) -> int:
    """Replaces this process with the task, or prints the task's command.

    Returns:
        0 after a dry run, or the status of a server that an engine has started;
        otherwise it does not return.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, task_plan, chief = _plan_task(argv)
    if values.dry_run:
        print(task_plan.shell_line())
    else:
        opens_port = task_plan.task.job != "evaluator"
        if opens_port and reach.is_here(task_plan.address):
            _check_port(task_plan)
        exposure = reach.exposure(task_plan.port) if opens_port else ""
        for notice in (exposure, _misplaced(task_plan)):
            if notice:
                _tell(notice)
        if task_plan.is_server:
            _tell(
                f"{task_plan.name} starts to serve on {task_plan.address}, until "
                f"{'the chief has ended' if chief else 'it is killed'}; training begins "
                "once every task is running"
            )
        environ = {**os.environ, **task_plan.env}
        if chief:
            return serving.run(task_plan, environ, chief, notice=_tell)
        os.execve(task_plan.argv[0], task_plan.argv, environ)
    return 0


def _check_port(task_plan: TaskPlan) -> None:
    """Checks that the task can listen, which TensorFlow says only after seconds."""
    with socket.socket() as probe:
        # As in `launch.remote.host.is_free`.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", task_plan.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # TensorFlow says what is wrong.
            raise UsageError(
                f"{task_plan.name} must listen on port {task_plan.port}, which another "
                "program has (ss -ltnp shows which): end that, or choose another port in "
                f"--{task_plan.task.job}_hosts of every task"
            ) from None


def _plan_task(argv: Sequence[str]) -> tuple[Flags, TaskPlan, str]:
    """Returns the flags, the task, and the chief's address if a server ends with it."""
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    is_given = _is_given(values)
    config = _from_engine(values) if is_given else _from_flags(values)
    cluster, task = config.cluster, config.task
    kind = kind_of_script(program, values.program, len(cluster.ps))
    plans = without_proxy(plan(cluster, program, kind), os.environ)
    task_plan = next(each for each in plans if each.task == task)
    if values.gpus is not None:
        task_plan = gpus.showing(task_plan, values.gpus)
    command_line.check_backend()
    # A server does not run the script, so its host does not need a copy.
    if not task_plan.is_server:
        command_line.check_script(program)
    has_chief = is_given and task_plan.is_server
    return values, task_plan, cluster.address(Task("chief", 0)) if has_chief else ""


def _is_given(values: Flags) -> bool:
    """Returns True if no flag describes the cluster, so that an engine has to."""
    names = ["job_name", "task_index", *(f"{job}_hosts" for job in JOBS)]
    if not (said := [name for name in names if values[name].present]):
        return True
    for name in ("num_ps", "first_port"):
        if values[name].present:
            raise UsageError(
                f"--{name} is for a cluster that an engine describes, and --{said[0]} "
                "describes another: omit one of them"
            )
    return False


def _from_engine(values: Flags) -> TFConfig:
    try:
        config = engines.from_engine(os.environ, values.num_ps, values.first_port)
    except ClusterError as error:
        raise UsageError(
            f"{error}. Or describe the cluster: --job_name, --task_index and the hosts"
        ) from None
    if config.task in config.cluster:
        return config
    # Engines keep an evaluator out of the cluster; nobody connects to its address.
    evaluator = ("localhost:1",)
    return TFConfig(replace(config.cluster, evaluator=evaluator), config.task)


def _from_flags(values: Flags) -> TFConfig:
    hosts = {job: getattr(values, f"{job}_hosts") for job in JOBS}
    cluster = Cluster.from_hosts(**hosts)
    task = _task(cluster, values.job_name, values.task_index)
    cluster.address(task)
    return TFConfig(cluster, task)


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


def _define_flags() -> Flags:
    values = Flags()
    command_line.define_task(values)
    values.texts(
        "gpus",
        None,
        "GPUs of this host that the task can use, as in CUDA_VISIBLE_DEVICES. By "
        "default all.",
    )
    values.integer(
        "num_ps",
        None,
        "How many of the first hosts that SageMaker or Slurm has given are parameter "
        "servers (ps). By default none.",
        lower_bound=0,
    )
    values.integer(
        "first_port",
        None,
        "The first port on each of these hosts. By default 2222 on SageMaker, and one "
        "that the job's id gives on Slurm.",
        lower_bound=1,
        upper_bound=65_535,
    )
    command_line.define_common(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.task")
