"""Jobs whose tasks all run on this machine, connected over its loopback interface."""

import contextlib
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from launch.console.tf_noise import LOG_LEVEL
from launch.job import gpus
from launch.job.job import Job
from launch.job.plan import (
    AUTO,
    COORDINATOR,
    SERVER,
    Program,
    TaskPlan,
    cluster_of,
    plan,
    resolve_kind,
    without_proxy,
)
from launch.network import ports, reach
from launch.supervise.handle import Handle
from launch.supervise.processes import check_platform
from tf_config import Cluster, ClusterError, Task, TFConfig, contract
from tf_config.errors import Mistake

_LOGS = "logs"
_NAME = re.compile(r"\d{8}-\d{6}-\d{6}-\d+")
_KEPT_RUNS = 20
_QUIET_SECONDS = 60.0


class LogDirError(Mistake):
    """The log directory cannot be written."""


class LaunchError(RuntimeError):
    """The cluster did not start, or was lost; the message says which task failed and why."""


@dataclass(frozen=True)
class Servers:
    """Running ps and worker processes that wait for a coordinator.

    Attributes:
        tf_config: The chief's TF_CONFIG.
        pids: The process id of each task, by its name, such as `ps:0`.
        log_dir: The directory of the log files.
    """

    tf_config: TFConfig
    pids: Mapping[str, int]
    log_dir: str


def local_cluster(
    num_ps: int, num_workers: int, *, chief: bool = True, evaluator: bool = False
) -> Cluster:
    """Creates a cluster whose addresses are free ports on 127.0.0.1.

    Raises:
        PortError: If this machine has too few free ports.
        ClusterError: If the counts are not a valid cluster.
        PlatformError: If this machine does not run Linux.
    """
    for name, count in (("num_ps", num_ps), ("num_workers", num_workers)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ClusterError(
                f"{name} is how many tasks to start, a whole number from 0; "
                f"received {count!r}"
            )
    counts = {
        "chief": int(chief),
        "ps": num_ps,
        "worker": num_workers,
        "evaluator": int(evaluator),
    }
    return at_free_ports(counts)


def at_free_ports(counts: Mapping[str, int]) -> Cluster:
    """Returns a cluster with these numbers of tasks of each job, as `local_cluster`."""
    check_platform()
    free = iter(ports.pick(sum(counts.values())))
    return cluster_of(counts, lambda task: f"127.0.0.1:{next(free)}")


def make_job(
    cluster: Cluster,
    program: Program,
    kind: str = AUTO,
    *,
    log_dir: str | None = None,
    server: Sequence[str] = SERVER,
    environ: Mapping[str, str] = os.environ,
    gpus_per_worker: int | None = None,
    checkpoint_dir: str | None = None,
    timeline: str | None = None,
    **limits: Any,
) -> Job:
    """Plans a job on this machine.

    Args:
        cluster: A cluster with addresses on this machine; see `local_cluster`.
        program: The user's script and its flags.
        kind: One of `launch.job.plan.PROGRAM_KINDS`.
        log_dir: The directory of the log files; by default a new one under `logs`.
        server: The arguments that make Python a server.
        environ: The environment in which the tasks will be started.
        gpus_per_worker: The number of GPUs per worker; None shows all GPUs to every
            task that trains.
        checkpoint_dir: The directory of the script's checkpoints.
        timeline: The file of when each step did what.
        **limits: Other attributes of `Job`: its timeouts, `echo`, `chatty`, `network`
            and the limits of restarts.

    Raises:
        PlanError: If the kind or `min_workers` does not fit the cluster, or there are
            too few GPUs.
    """
    plans = without_proxy(plan(cluster, program, kind, server=server), environ)
    if gpus_per_worker is not None:
        plans = gpus.assign(plans, gpus_per_worker, gpus.available(environ))
    kind = resolve_kind(cluster, kind)
    told = _told(checkpoint_dir, timeline, limits)
    # A server does not read them.
    plans = tuple(p if p.is_server else p.telling(told) for p in plans)
    return Job(
        kind=kind,
        plans=tuple(share_machine(each, environ) for each in plans),
        log_dir=log_dir or new_log_dir(),
        resumes=checkpoint_dir is not None,
        **limits,
    )


def _told(
    checkpoint_dir: str | None,
    timeline: str | None,
    limits: Mapping[str, Any],
) -> dict[str, str]:
    """Returns the variables that tell a script about the launcher's flags."""
    told = {}
    if checkpoint_dir is not None:
        told[contract.CHECKPOINT_DIR] = os.path.abspath(checkpoint_dir)
    if timeline is not None:
        told[contract.TIMELINE] = os.path.abspath(timeline)
    if "stall_timeout" in limits:
        told[contract.STALL_TIMEOUT] = f"{limits['stall_timeout']:g}"
    if limits.get("min_workers") is not None:
        told[contract.MIN_WORKERS] = str(limits["min_workers"])
    return told


def share_machine(task_plan: TaskPlan, environ: Mapping[str, str]) -> TaskPlan:
    """Adds the variables that let a task share its machine and its terminal.

    Settings of the user are kept, except that a ps sees no GPU: its variables are in
    main memory, and TensorFlow would still take GPU memory from the workers.
    """
    # Python buffers its output to a pipe in blocks, which would delay the lines.
    env = {"PYTHONUNBUFFERED": "1"}
    if task_plan.is_server:
        env[LOG_LEVEL] = "2"
    if task_plan.task.job != "ps":
        env[gpus.GROWTH] = "true"
    env = {name: value for name, value in env.items() if name not in environ}
    if task_plan.task.job == "ps":
        env[gpus.VISIBLE] = "-1"
    return task_plan.telling(env)


def run_job(job: Job) -> int:
    """Runs a job to its end, and returns its exit status.

    Raises:
        LogDirError: If the log directory cannot be written.
        PlatformError: If this machine does not run Linux.
    """
    make_log_dir(job.log_dir)
    with Handle(job) as handle:
        return handle.wait()


@contextlib.contextmanager
def servers(
    num_ps: int = 1,
    num_workers: int = 1,
    *,
    server: Sequence[str] = SERVER,
    **options: Any,
) -> Iterator[Servers]:
    """Starts only ps and workers, for a chief in this process.

        with launch.servers(num_ps=2, num_workers=2) as cluster:
            os.environ["TF_CONFIG"] = cluster.tf_config.to_json()

    They write only to their log files, and one may die without ending the others. All
    of them are gone when the context exits.

    Args:
        num_ps: Number of parameter servers, at least 1.
        num_workers: Number of workers, at least 1.
        server: The arguments that make Python a server.
        **options: `log_dir`, and the timeouts and the `network` of `Job`.

    Raises:
        LaunchError: If a server does not start.
        PlatformError: If this machine does not run Linux.
        ValueError: If the numbers are not a valid cluster, or the logs cannot be
            written.
    """
    cluster = local_cluster(num_ps, num_workers)
    chief = Program("")  # This process: it is in the plan, but is not started.
    job = make_job(cluster, chief, COORDINATOR, server=server, echo=False, **options)
    job = replace(job, plans=tuple(each for each in job.plans if each.is_server))
    if job.network == reach.PRIVATE:
        raise ValueError(
            "network='private' would lock out this process, which is the chief: choose "
            "'loopback', or start the whole job with python -m launch.local"
        )
    make_log_dir(job.log_dir)
    with Handle(job) as handle:
        event = handle.next_event()
        if "pids" not in event:
            raise LaunchError(event.get("error", "the supervisor exited"))
        if event["warning"]:
            warnings.warn(event["warning"], stacklevel=3)
        yield Servers(TFConfig(cluster, Task("chief", 0)), event["pids"], job.log_dir)


def make_log_dir(path: str) -> None:
    """Creates the directory of the log files if it does not exist.

    Raises:
        LogDirError: If it cannot be created or written.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        problem = error.strerror
    else:
        if os.access(path, os.W_OK | os.X_OK):
            _tidy(Path(path))
            return
        problem = "permission denied"
    raise LogDirError(
        f"cannot write to the log directory {path!r} ({problem}): choose another with "
        "--log_dir"
    )


def new_log_dir() -> str:
    """Returns the path of a directory that no other job has."""
    name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}"
    return os.path.join(_LOGS, name)


def drop_log_dir(path: str) -> None:
    """Removes the directory of a job that started nothing, if `new_log_dir` named it."""
    if _is_new(Path(path)):
        # It fails if there is a file.
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _tidy(newest: Path) -> None:
    """Removes the oldest of many directories that `new_log_dir` has named."""
    if not _is_new(newest):
        return
    # The names begin with the time.
    for each in sorted(filter(_is_new, newest.parent.iterdir()))[:-_KEPT_RUNS]:
        with contextlib.suppress(OSError):
            written = max(path.stat().st_mtime for path in (each, *each.iterdir()))
            # Another machine may share the directory, and run that job.
            is_over = not psutil.pid_exists(int(each.name.rpartition("-")[2]))
            if is_over and time.time() - written > _QUIET_SECONDS:
                shutil.rmtree(each)


def _is_new(path: Path) -> bool:
    return path.parent.name == _LOGS and bool(_NAME.fullmatch(path.name))
