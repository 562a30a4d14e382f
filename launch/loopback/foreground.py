"""Runs a job from a terminal: Ctrl-C and the exit status are the job's."""

import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from launch.job.job import Job
from launch.loopback.cluster import drop_log_dir, make_log_dir
from launch.supervise import processes
from launch.supervise.handle import Handle


def run(
    job: Job,
    keep: Sequence[int] = (),
    *,
    spare: Sequence[int] = (),
    on_start: Callable[[Handle], object] = lambda handle: None,
    on_signal: Callable[[int], None] = lambda signum: None,
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None,
) -> int:
    """Runs a job to its end, forwards SIGINT and SIGTERM to it, and returns its status.

    Args:
        job: The job.
        keep: Files that stay open until the last process of the job has ended, even if
            this one is killed.
        spare: Children of this process that outlive the job.
        on_start: Called with the supervisor as soon as it runs.
        on_signal: Called with each signal that is forwarded.
        on_event: Called at the end with each event of the supervisor.
    """
    handle: Handle | None = None

    def forward(signum: int, frame: FrameType | None) -> None:
        if handle is None:
            # Nothing has been started yet that would have to end first.
            raise SystemExit(128 + signum)
        on_signal(signum)
        handle.signal(signum)

    make_log_dir(job.log_dir)
    # If the supervisor is killed, its tasks become children of this process.
    processes.adopt_orphans()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, forward)
    handle = Handle(job, keep)
    on_start(handle)
    status = handle.wait()
    for event in iter(handle.next_event, {}):
        on_event(event)
    # The job has ended: do not lose its exit status.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    # Only a supervisor that was killed leaves tasks behind.
    processes.kill_descendants(job.grace_period, spare)
    drop_log_dir(job.log_dir)
    return status
