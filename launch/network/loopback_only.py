"""Keeps the ports of a job closed to other machines.

TensorFlow's server listens on every interface, not only that of its address, and has
no option to listen on fewer. So each bind(2) of a task is inspected before the kernel
carries it out: if it binds a port of the job on every interface, it gets the loopback
address instead. Other sockets are left alone.

Why nothing simpler: a firewall rule needs root and outlives a job that is killed; a network
namespace (`--network=private`) takes downloads and cloud storage from the script; a BPF
program on the cgroup's `bind` needs root; `LD_PRELOAD` needs a C library for each
architecture and libc.
"""

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Collection

from launch.network import seccomp

_FAMILY_AND_PORT = struct.Struct("=H2s")
# The offset of the address in `struct sockaddr_in` and `sockaddr_in6`, and the loopback
# address to write there. For IPv6 it is that of IPv4, mapped: the tasks' addresses are
# 127.0.0.1, which ::1 would not accept.
_LOOPBACK: dict[int, tuple[int, bytes]] = {
    socket.AF_INET: (4, socket.inet_pton(socket.AF_INET, "127.0.0.1")),
    socket.AF_INET6: (8, socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")),
}
_LONGEST_ADDRESS = 28  # bytes of a `struct sockaddr_in6`
_TRIAL_SECONDS = 5.0


class LoopbackOnly:
    """Confines the descendants of this process, for as long as it lives.

    The process itself is confined too. It must not bind, since it would wait for its
    own answer.

    Raises:
        OSError: If the system does not allow it.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._listener = seccomp.filter_bind()

    def fileno(self) -> int:
        """Returns the file descriptor that is readable when a bind waits for an answer."""
        return self._listener

    def answer(self) -> None:
        """Answers one bind; waits until there is one."""
        call = seccomp.receive(self._listener)
        if call is None:
            return
        try:
            self._redirect(call)
        except OSError:
            # A server that does not start is better than one that others can use.
            seccomp.answer(self._listener, call, errno.EACCES)
        else:
            seccomp.answer(self._listener, call)

    def _redirect(self, call: seccomp.SystemCall) -> None:
        _, pointer, size, *_ = call.arguments
        memory = seccomp.open_memory(self._listener, call)
        try:
            address = os.pread(memory, min(size, _LONGEST_ADDRESS), pointer)
            if (found := _wildcard(address)) and found[1] in self._ports:
                offset, loopback = _LOOPBACK[found[0]]
                os.pwrite(memory, loopback, pointer + offset)
        finally:
            os.close(memory)


def _wildcard(address: bytes) -> tuple[int, int] | None:
    """Returns the family and port of a wildcard address; None for any other."""
    if len(address) < _FAMILY_AND_PORT.size:
        return None
    family, port = _FAMILY_AND_PORT.unpack_from(address)
    if family not in _LOOPBACK:
        return None
    offset, loopback = _LOOPBACK[family]
    if address[offset : offset + len(loopback)] != bytes(len(loopback)):
        return None
    return family, int.from_bytes(port, "big")


def why_not() -> str:
    """Returns why this system cannot confine children, or '' if it can.

    A child of this process tries it, because a filter cannot be removed again. This
    process must have one thread.
    """
    code = _status_of(_try)
    return f"seccomp(2): {os.strerror(code)}" if code else ""


def _try() -> None:
    trial = LoopbackOnly([0])
    waiting = select.poll()
    waiting.register(trial, select.POLLIN)

    def answer() -> None:
        if waiting.poll(_TRIAL_SECONDS * 1000):
            trial.answer()

    if code := _status_of(_bind, answer):
        raise OSError(code, os.strerror(code))


def _bind() -> None:
    with socket.socket() as tried:
        tried.bind(("", 0))
        host, _ = tried.getsockname()
    if host != "127.0.0.1":
        raise OSError(errno.ENOTSUP, host)


def _status_of(
    trial: Callable[[], None], meanwhile: Callable[[], None] = lambda: None
) -> int:
    """Runs `trial` in a child; returns the errno of its error, or 0."""
    pid = os.fork()
    if pid == 0:
        # For what is no OSError.
        code = errno.EIO
        try:
            trial()
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    meanwhile()
    _, status = os.waitpid(pid, 0)
    return abs(os.waitstatus_to_exitcode(status))
