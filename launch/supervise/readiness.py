"""Detects whether the servers and the tunnels listen, and why one does not."""

import time
from collections.abc import Sequence

import psutil

from launch.job.job import Job
from launch.supervise import policy
from launch.supervise.end_request import EndRequest
from launch.supervise.event_loop import EventLoop
from launch.supervise.policy import Verdict, describe_exit
from launch.supervise.processes import describe
from launch.supervise.task_process import TaskProcess
from launch.supervise.tunnels import Tunnels

_INTERVAL = 0.03  # seconds


def await_all(
    tasks: Sequence[TaskProcess],
    tunnels: Tunnels,
    loop: EventLoop,
    job: Job,
    end_request: EndRequest,
) -> Verdict | None:
    """Waits until all servers and all tunnels listen, or the job is told to end.

    As many workers as the program needs are enough. Returns the verdict on the job if
    one of them does not listen.
    """
    deadline = time.monotonic() + job.startup_timeout
    missing = list(tasks)
    while (
        missing := [task for task in missing if not listens(task)]
    ) or tunnels.missing:
        if _are_spare(missing, tunnels, job):
            return None
        loop.run_once(_INTERVAL)
        if end_request:
            return None
        ended = [task for task in tasks if task.exit is not None]
        for task in ended:
            if task.exit is not None and not _are_spare(ended, None, job):
                status = policy.exit_status(task.exit.code) or 1
                return Verdict(status, explain_death(task))
        if tunnels.failure:
            return tunnels.failure
        if time.monotonic() > deadline:
            late = explain_silence(missing, job) or tunnels.explain_silence()
            return Verdict(1, late + _shortage(missing, job))
    return None


def _are_spare(tasks: Sequence[TaskProcess], tunnels: Tunnels | None, job: Job) -> bool:
    """Returns True if the program needs neither these tasks nor any without a tunnel."""
    hosts = {each.remote.host for each in tunnels.missing} if tunnels else set()
    lost = {*(task.plan.task for task in tasks), *job.tasks_on(hosts)}
    return bool(lost) and policy.can_spare(job.plans, lost, (), job.needed_workers)


def _shortage(missing: Sequence[TaskProcess], job: Job) -> str:
    if job.min_workers is None:
        return ""
    workers = sum(plan.task.job == "worker" for plan in job.plans)
    listen = workers - sum(task.plan.task.job == "worker" for task in missing)
    return (
        f"\n{listen} of {workers} workers listen, and {job.min_workers} are needed "
        "(--min_workers)"
    )


def listens(task: TaskProcess) -> bool:
    """Returns True if the task's own process accepts connections on its port."""
    return task.alive and task.listens


def explain_death(task: TaskProcess) -> str:
    """Explains why a server that has exited did not start."""
    assert task.exit is not None
    return (
        f"{task.plan.name} {describe_exit(task.exit.code)} before every server was "
        f"listening; its address is {task.plan.address}{_taken(task)}; {task.tail()}"
    )


def explain_silence(tasks: Sequence[TaskProcess], job: Job) -> str:
    """Explains which servers are alive but did not listen in time."""
    return "\n".join(
        f"{task.plan.name} did not listen on {task.plan.address} within "
        f"{job.startup_timeout:g} s (--startup_timeout), although "
        f"{_process(task)} is alive{_taken(task)}; {task.tail()}"
        for task in tasks
    )


def _process(task: TaskProcess) -> str:
    remote = task.plan.remote
    return f"the task on {remote.host}" if remote else f"its process {task.pid}"


def _taken(task: TaskProcess) -> str:
    if task.plan.remote:
        return ""  # The agent on that host has looked before it started the task.
    stranger = stranger_on(task.plan.port, task.pid)
    return f"; port {task.plan.port} is taken by {stranger}" if stranger else ""


def stranger_on(port: int, pid: int) -> str | None:
    """Describes the process other than `pid` that listens on the port; None if none."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    owners = {
        each.pid
        for each in connections
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    } - {pid}
    if not owners:
        return None
    owner = owners.pop()
    # Only the owner of a socket and root can see which process has it.
    return "a process of another user" if owner is None else describe(owner)
