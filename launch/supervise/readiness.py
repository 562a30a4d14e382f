"""Whether a server listens, and why it does not."""

from collections.abc import Sequence
from typing import Any

import psutil

from launch.job import Job
from launch.supervise.policy import describe_exit
from launch.supervise.processes import describe
from launch.supervise.task_process import TaskProcess


def listens(task: TaskProcess) -> bool:
    """Returns whether the task's own process accepts connections on its port."""
    return task.alive and process_listens(task.pid, task.plan.port)


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
        f"{job.startup_timeout:g} s (--startup_timeout), although its process "
        f"{task.pid} is alive{_taken(task)}; {task.tail()}"
        for task in tasks
    )


def process_listens(pid: int, port: int) -> bool:
    """Returns whether this very process accepts connections on the port.

    Connecting would not distinguish our server from another program on the port.
    """
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(_accepts(connection, port) for connection in connections)


def stranger_on(port: int, pid: int) -> str | None:
    """Describes the process other than `pid` that listens on the port; None if none."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    owners = {each.pid for each in connections if _accepts(each, port)} - {pid}
    if not owners:
        return None
    owner = owners.pop()
    # Only the owner of a socket and root can see which process has it.
    return "a process of another user" if owner is None else describe(owner)


def _taken(task: TaskProcess) -> str:
    stranger = stranger_on(task.plan.port, task.pid)
    return f"; port {task.plan.port} is taken by {stranger}" if stranger else ""


def _accepts(connection: Any, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
