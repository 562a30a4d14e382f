"""Which process of this machine listens on a port."""

import contextlib
import os
from typing import Any

import psutil

from launch.supervise.processes import describe

# A state of a socket, in the kernel's tables.
_LISTEN = "0A"


def process_listens(pid: int, port: int) -> bool:
    """Returns whether this very process accepts connections on the port.

    Connecting would not distinguish our server from another program on the port.
    """
    # Not by psutil, which reads the tables of this process's network: the other may be in
    # a namespace of its own.
    sockets = _listening(pid, port)
    if not sockets:
        return False
    links = set()
    with contextlib.suppress(OSError):
        for file in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(file.path))
    return not sockets.isdisjoint(links)


def _listening(pid: int, port: int) -> set[str]:
    """Returns the sockets that listen on a port of a process's network."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as lines:
            for line in lines:
                _, local, _, state, *rest = line.split()
                if state == _LISTEN and local.endswith(f":{port:04X}"):
                    found.add(f"socket:[{rest[5]}]")
    return found


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


def _accepts(connection: Any, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
