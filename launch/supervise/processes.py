"""Processes that end together, however one of them dies.

Two features of Linux are used (prctl(2)). A task asks the kernel to kill it when its
parent dies. And a supervisor asks to become the parent of every orphan among its
descendants, so that none escapes by changing its session, environment or parent:
`kill_descendants` is done when no child is left.
"""

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from launch.remote.host import PR_SET_CHILD_SUBREAPER, die_with_parent, prctl


class PlatformError(RuntimeError):
    """This machine cannot run a job, since it does not run Linux."""


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
    """The end of a child.

    Attributes:
        pid: Its process id.
        code: Its return code; the negative signal number if it was killed.
        cpu: Its user and system time, in seconds.
        peak: The most memory that it had, in bytes.
        why: Further facts about its end, or ''.
    """

    pid: int
    code: int
    cpu: float
    peak: int = 0
    why: str = ""


def adopt_orphans() -> None:
    """Makes this process the parent of any orphan among its descendants."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    output: int,
    errors: int | None = None,
    stdin: int | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> int:
    """Starts a task in its own session, and returns its process id; it dies with this process.

    The session keeps the terminal's Ctrl-C from reaching the task directly: the
    supervisor decides which tasks end, and in which order. Call it from the main
    thread, and reap with `reap`. By default errors go where the output goes; a `stdin`
    of None is this process's own.
    """
    process = subprocess.Popen(
        argv,
        env=dict(env),
        stdin=stdin,
        stdout=output,
        stderr=output if errors is None else errors,
        start_new_session=True,
        pass_fds=pass_fds,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )
    # `reap` reaps it, and `Popen` would try to wait for it again.
    process.returncode = 0
    return process.pid


def reap() -> list[Exit]:
    """Reaps the children that have ended, including adopted ones."""
    exits: list[Exit] = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, usage = ended
            cpu = usage.ru_utime + usage.ru_stime
            code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
            exits.append(Exit(pid, code, cpu, peak))
    return exits


def kill_descendants(
    timeout: float, spare: Sequence[int] = ()
) -> tuple[list[Exit], list[str]]:
    """Kills all descendants but some, retrying for up to `timeout` seconds.

    Call `adopt_orphans` first. Processes to `spare` must have no children. Returns the
    exits of processes that ended, and descriptions of those that are still alive.
    """
    exits: list[Exit] = []
    deadline = time.monotonic() + timeout
    while True:
        exits += reap()
        found = psutil.Process().children(recursive=True)
        survivors = [process for process in found if process.pid not in spare]
        if not survivors:
            return exits, []
        if time.monotonic() > deadline:
            return exits, [describe(process.pid) for process in survivors]
        for process in survivors:
            # It may have ended, or belong to another user.
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def kill_strays(tasks: Sequence[int]) -> None:
    """Kills the leftovers of dead tasks: children that are not in `tasks`.

    Call `adopt_orphans` first.
    """
    for child in psutil.Process().children():
        if child.pid in tasks:
            continue
        strays = [child]
        with contextlib.suppress(psutil.Error):
            strays += child.children(recursive=True)
        for each in strays:
            # One that has just ended keeps none of the others alive.
            with contextlib.suppress(psutil.Error):
                each.kill()


def describe(pid: int) -> str:
    """Describes a process, for example as `process 12 (python train.py)`."""
    with contextlib.suppress(psutil.Error):
        if command := " ".join(psutil.Process(pid).cmdline()):
            return f"process {pid} ({command[:60]})"
    return f"process {pid}"
