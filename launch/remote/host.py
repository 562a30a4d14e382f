"""Questions to the kernel of a host, about ports and about processes."""

import contextlib
import ctypes
import os
import signal
import socket
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LISTEN = "0A"  # As /proc/net/tcp writes the state of a socket.
_libc = ctypes.CDLL(None, use_errno=True)


def is_free(port: int) -> bool:
    """Returns True if a server could listen on a port, on every interface."""
    with socket.socket() as probe:
        # Connections that ended a moment ago do not hold a port against a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return can_bind(probe, ("", port))


def can_bind(tried: socket.socket, address: Any) -> bool:
    """Binds a socket, and returns whether that was possible."""
    with contextlib.suppress(OSError):
        tried.bind(address)
        return True
    return False


def listens(pid: int, port: int) -> bool:
    """Returns True if this very process listens on the port.

    Connecting would not distinguish a server of ours from another program on the port.
    """
    # The tables of its network: it may be in a namespace of its own.
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as rows:
            for row in rows:
                _, local, _, state, _, _, _, _, _, inode, *_ = row.split()
                if state == _LISTEN and local.endswith(f":{port:04X}"):
                    inodes.add(f"socket:[{inode}]")
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd") if inodes else ():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                    return True
    return False


def stop_of(pid: int) -> int | None:
    """Returns which stop, as by SIGSTOP, a process is in; None if it is in none.

    Returns:
        A number that differs if the process has been continued in between, however
        briefly: that of the times that its main thread has given up its CPU.
    """
    if _stat(pid)[:1] != ["T"]:
        return None
    switches = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if "ctxt_switches" in line:
                switches += int(line.split()[1])
    return switches


def children() -> list[int]:
    """Returns the ids of this process's children."""
    ours = str(os.getpid())
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _stat(pid)[1:2] == [ours]]


def _stat(pid: int) -> list[str]:
    """Returns the state of a process, the id of its parent, and more; [] if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        # The command's name comes before this, in parentheses, and may itself contain
        # some, and any bytes.
        return file.read().rpartition(b")")[2].decode().split()
    return []


def prctl(option: int, value: int) -> None:
    """Sets an attribute of this process: one of those above."""
    # prctl(2) is variadic and reads an unsigned long; ctypes would pass a C int.
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel to send `signum` to this process when its parent dies.

    The kernel regards the *thread* that started this process as its parent.
    """
    prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # The parent died before the call.
        os.kill(os.getpid(), signum)
