"""A private network namespace for this process and its descendants.

It has only a loopback interface: no process outside it, even on this machine, can reach
it, and no process inside it can reach out.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Moves this process, which must have one thread, to a new network.

    A process that is not root needs a user namespace for this. It keeps its user and
    group there, but its descendants cannot use set-user-ID programs such as `sudo`.

    Raises:
        OSError: If the system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _unshare(_CLONE_NEWNET | _CLONE_NEWUSER)
        # The kernel lets an unprivileged user map a group only if setgroups is denied: to
        # drop a group could grant access that the group denies.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # The loopback interface of a new network is down.
    with socket.socket() as any_socket:
        request = struct.pack("=16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def join(pid: int) -> None:
    """Moves this process, which must have one thread, to another process's network.

    Raises:
        OSError: If the system does not allow it, or the process does not exist.
    """
    # The user namespace first: only in it has this process the right to join its
    # network.
    for kind, flag in (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET)):
        theirs, ours = f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}"
        if os.path.samefile(theirs, ours):
            continue
        namespace = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(namespace, flag))
        finally:
            os.close(namespace)


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno() or errno.EPERM
        raise OSError(number, os.strerror(number))
