"""Whether a server listens; and if it does not, why."""

from collections.abc import Sequence
from typing import Any

import psutil

from launch.job import Job
from launch.supervise.policy import describe_exit
from launch.supervise.processes import describe
from launch.supervise.supervised_task import SupervisedTask


def listens(task: SupervisedTask) -> bool:
    """Whether the task's own process accepts connections on its port."""
    return task.alive and process_listens(task.pid, task.plan.port)


def explain_death(task: SupervisedTask) -> str:
    """Why a server that has ended did not start."""
    assert task.exit is not None
    return (
        f"{task.plan.name}, to listen on {task.plan.address}, "
        f"{describe_exit(task.exit.code)} before every server listened"
        f"{_taken(task)}; {task.tail()}"
    )


def explain_silence(tasks: Sequence[SupervisedTask], job: Job) -> str:
    """Which servers are alive and do not listen, though their time is up."""
    return "\n".join(
        f"{task.plan.name} did not listen on {task.plan.address} within "
        f"{job.startup_timeout:g} s (--startup_timeout), though its process "
        f"{task.pid} is alive{_taken(task)}; {task.tail()}"
        for task in tasks
    )


def process_listens(pid: int, port: int) -> bool:
    """Whether this very process accepts connections on the port.

    Connecting would not tell our server from a stranger that took the port.
    """
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(_accepts(connection, port) for connection in connections)


def stranger_on(port: int, pid: int) -> str | None:
    """Describes the process other than `pid` that listens on the port, if any."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    owners = {each.pid for each in connections if _accepts(each, port)} - {pid}
    if not owners:
        return None
    owner = owners.pop()
    # Only its owner and root see to whom a socket belongs.
    return "a process of another user" if owner is None else describe(owner)


def _taken(task: SupervisedTask) -> str:
    stranger = stranger_on(task.plan.port, task.pid)
    return f"; port {task.plan.port} is taken by {stranger}" if stranger else ""


def _accepts(connection: Any, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
