"""Processes that end together, however one of them dies.

Two bonds of the Linux kernel are used (prctl(2)). A task asks to be killed when
its parent dies. And a supervisor asks to inherit the orphans among its
descendants, so that no grandchild escapes it by changing its session, its
environment or its parent: `kill_descendants` is done when no child is left.
"""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class PlatformError(RuntimeError):
    """A job on this machine was asked for where there is no Linux."""


def check_platform() -> None:
    """Checks that this machine can supervise a job.

    Raises:
        PlatformError: If it does not run Linux, whose prctl(2) ties processes together.
    """
    if sys.platform != "linux":
        raise PlatformError(
            f"a job on one machine needs Linux; this is {sys.platform}. Run it in a Linux "
            "container, or start each task with python -m launch.task"
        )


@dataclass(frozen=True)
class Exit:
    """How a child ended. `cpu` is its user and system time, in seconds."""

    pid: int
    code: int
    cpu: float


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Has this process receive `signum` when its parent dies.

    The kernel takes the *thread* that started this process for its parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # It died before we asked.
        os.kill(os.getpid(), signum)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    output: int,
    inherit_stdin: bool = False,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a task in a session of its own, which dies with this process.

    The session keeps the terminal's Ctrl-C from reaching the task directly: who is
    told to end, and in which order, is the supervisor's to say. Call from the main
    thread, and reap with `reap`, not with the returned object.

    Raises:
        OSError: If the program cannot be started.
    """
    return subprocess.Popen(
        argv,
        env=dict(env),
        stdin=None if inherit_stdin else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=pass_fds,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )


def reap() -> list[Exit]:
    """Collects the children that have ended, adopted ones included."""
    exits: list[Exit] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return exits
        if pid == 0:
            return exits
        cpu = usage.ru_utime + usage.ru_stime
        exits.append(Exit(pid, os.waitstatus_to_exitcode(status), cpu))


def kill_descendants(timeout: float) -> tuple[list[Exit], list[str]]:
    """Kills children and grandchildren until there is none, for `timeout` seconds.

    The caller has to have adopted orphans.

    Returns:
        Who ended, and the descriptions of those that could not be killed.
    """
    exits: list[Exit] = []
    deadline = time.monotonic() + timeout
    while True:
        exits += reap()
        survivors = psutil.Process().children(recursive=True)
        if not survivors:
            return exits, []
        if time.monotonic() > deadline:
            return exits, [describe(process.pid) for process in survivors]
        for process in survivors:
            try:
                process.kill()
            except psutil.Error:
                continue  # Gone by itself, or another user's.
        time.sleep(0.01)


def kill_strays(tasks: Sequence[int]) -> None:
    """Kills what ended tasks have left behind: children that are none of these.

    The caller has to have adopted orphans.
    """
    for child in psutil.Process().children():
        if child.pid in tasks:
            continue
        with contextlib.suppress(psutil.Error):
            for process in [*child.children(recursive=True), child]:
                process.kill()


def describe(pid: int) -> str:
    """A process as `process 12 (python train.py)`."""
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        command = ""
    return f"process {pid} ({command[:60]})" if command else f"process {pid}"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
