"""Whether a server listens, and who else does on its port."""

from typing import Any

import psutil

from launch.processes import describe


def listens(pid: int, port: int) -> bool:
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


def _accepts(connection: Any, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
