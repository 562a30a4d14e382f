"""Intercepts the system calls of other processes (seccomp_unotify(2)).

A process installs a filter, which all its descendants inherit. From then on the kernel
suspends any of them that makes the filtered call, until the holder of the filter's file
descriptor lets it continue or fail. None of them needs to be root.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from dataclasses import dataclass

_NUMBERS = {  # (AUDIT_ARCH_*, number of seccomp(2), number of bind(2)) per machine
    "x86_64": (0xC000003E, 317, 49),
    "aarch64": (0xC00000B7, 277, 200),
}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_FLAG_SPEC_ALLOW = 1 << 2  # Without it, kernels before 5.16 slow down the process.
_FLAG_NEW_LISTENER = 1 << 3
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_OFFSET_OF_NUMBER, _OFFSET_OF_ARCHITECTURE = 0, 4
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_LET_IT_GO_ON = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord("!") << 8 | number


_RECEIVE = _request(3, 0, _NOTIFICATION.size)
_SEND = _request(3, 1, _ANSWER.size)
_IS_VALID = _request(1, 2, 8)


@dataclass(frozen=True)
class SystemCall:
    """A suspended system call: its id, the caller's process id, and its arguments."""

    id: int
    pid: int
    arguments: tuple[int, ...]


def filter_bind() -> int:
    """Intercepts each bind of this process and its descendants, from now on.

    A process that is not root can no longer gain privileges, for example with `sudo`.

    Returns:
        The file descriptor to `receive` from. Once it is closed, every bind fails.

    Raises:
        OSError: If the kernel does not allow it, or the machine is unknown.
    """
    if platform.machine() not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"not implemented for {platform.machine()}")
    architecture, seccomp, bind = _NUMBERS[platform.machine()]
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD_WORD, 0, 0, _OFFSET_OF_ARCHITECTURE),
            # Calls of another architecture, as of 32-bit programs, have other numbers:
            # they pass.
            (_JUMP_IF_EQUAL, 0, 3, architecture),
            (_LOAD_WORD, 0, 0, _OFFSET_OF_NUMBER),
            (_JUMP_IF_EQUAL, 0, 1, bind),
            (_RETURN, 0, 0, _NOTIFY),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    memory = ctypes.create_string_buffer(program)
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(memory))
    flags = _FLAG_NEW_LISTENER | _FLAG_SPEC_ALLOW
    install = (seccomp, _SET_MODE_FILTER, flags, described)
    listener = _libc.syscall(*install)
    # Only root may install a filter without giving up set-user-ID programs first: a
    # filter could confuse them.
    if listener < 0 and ctypes.get_errno() == errno.EACCES:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        listener = _libc.syscall(*install)
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(listener)


def receive(listener: int) -> SystemCall | None:
    """Waits for a system call; returns None if its thread has ended meanwhile."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except FileNotFoundError:
        return None
    identity, pid, _, _, _, _, *arguments = _NOTIFICATION.unpack(buffer)
    return SystemCall(identity, pid, tuple(arguments))


def open_memory(listener: int, call: SystemCall) -> int:
    """Opens the memory of the calling process for reading and writing.

    Raises:
        OSError: If it cannot be opened, or the process has ended.
    """
    memory = os.open(f"/proc/{call.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        # The process may have ended, and its id may belong to another process by now.
        fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", call.id))
    except OSError:
        os.close(memory)
        raise
    return memory


def answer(listener: int, call: SystemCall, error: int = 0) -> None:
    """Lets the kernel carry out a system call, or makes it fail with this `errno`.

    Does nothing if the process has ended meanwhile.
    """
    packed = bytearray(_ANSWER.pack(call.id, 0, -error, 0 if error else _LET_IT_GO_ON))
    with contextlib.suppress(FileNotFoundError):
        fcntl.ioctl(listener, _SEND, packed)
