"""Makes a forked process look like one that was just started (Linux only).

It replaces the state that `fork` copies and `exec` would not: the files, the session,
the environment, the seeds, and the command line that other processes see.
"""

import ctypes
import fcntl
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from tf_config.contract import ForkRequest

_PR_SET_PDEATHSIG = 1
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = 0xFFFFFFFF
# Indices in /proc/self/stat after the command in parentheses; see proc(5).
_START_CODE, _END_CODE, _START_STACK = 23, 24, 25
_START_DATA, _END_DATA, _START_BRK = 42, 43, 44
_libc = ctypes.CDLL(None, use_errno=True)


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk"),
            *("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv"),
        )
    ] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


_shown: ctypes.Array[ctypes.c_char] | None = None


def show(argv: Sequence[str], env: Sequence[str]) -> None:
    """Shows a command line and an environment in /proc/self, where `exec` would.

    Raises OSError if the kernel does not allow it.
    """
    global _shown
    first, second = ("".join(f"{each}\0" for each in lines) for lines in (argv, env))
    arguments = os.fsencode(first)
    shown = ctypes.create_string_buffer(arguments + os.fsencode(second))
    with open("/proc/self/stat") as file:
        stat = file.read().rpartition(")")[2].split()
    start = ctypes.addressof(shown)
    middle, end = start + len(arguments), start + len(shown) - 1
    _libc.sbrk.restype = ctypes.c_uint64
    memory = _MemoryMap(
        *(int(stat[each]) for each in (_START_CODE, _END_CODE, _START_DATA, _END_DATA)),
        *(int(stat[_START_BRK]), _libc.sbrk(0), int(stat[_START_STACK])),
        *(start, middle, middle, end, 0, 0, _NO_FILE),
    )
    size = ctypes.c_ulong(ctypes.sizeof(memory))
    _prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(memory), size)
    _shown = shown  # The kernel reads it for as long as the process lives.


def become(request: ForkRequest, files: Sequence[int], parent: int) -> None:
    """Replaces the state that this process has inherited from the fork server.

    The files are one for each of `request.fds`. The process dies with `parent`, which
    adopts it soon. Raises OSError if its directory is gone.
    """
    os.setsid()
    _die_with(parent)
    _take(files, request.fds)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    show(request.argv, [f"{name}={value}" for name, value in request.env.items()])
    # Python's `random` seeds itself after a fork.
    importlib.import_module("numpy").random.seed()
    if "multiprocessing" in sys.modules:
        current = importlib.import_module("multiprocessing").current_process()
        current.authkey = os.urandom(32)
    importlib.invalidate_caches()


def _die_with(parent: int) -> None:
    # The process in between ends at once.
    while os.getppid() not in (parent, 1):
        time.sleep(0.0005)
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Moves files to their numbers, which some of them may have already."""
    # Above all of them: no file is overwritten before it has been moved.
    least = max(*files, *numbers) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, least) for each in files]
    for each in files:
        os.close(each)
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)


def _prctl(option: int, *arguments: object) -> None:
    rest = [ctypes.c_ulong(0)] * (4 - len(arguments))
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if _libc.prctl(option, *wide, *rest) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
