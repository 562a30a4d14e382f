"""Runs a job again elsewhere when one of its hosts is lost.

The addresses of all tasks are in all others, so every task starts again, and the program
goes on from its last checkpoint.
"""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

from launch.job import Job
from launch.supervise import policy


def run(
    job: Job,
    once: Callable[[str], tuple[int, bool]],
    tell: Callable[[str], None],
    is_free: Callable[[], bool] = lambda: False,
) -> int:
    """Runs a job, again as long as its tasks have to move.

    Args:
        job: Says how often, and where the logs of its first run are.
        once: Runs it with its logs in a directory; returns its exit status, and whether
            its tasks have to move.
        tell: Tells the user something.
        is_free: Whether the last move was not for a fault, and counts for no restart.

    Returns:
        The exit status of the last run.
    """
    moves: list[float] = []
    number = 0
    log_dir = job.log_dir
    while True:
        leave_on_signals(tell)
        code, has_moved = once(log_dir)
        if not (code and has_moved):
            return code
        number += 1
        log_dir = os.path.join(job.log_dir, f"move-{number}")
        if is_free():
            continue
        now = time.monotonic()
        delay = policy.restart_delay(moves, now, job.max_restarts, job.restart_window)
        if delay is None:
            tell("too many moves (--max_restarts): not starting the job again")
            return code
        moves.append(now)
        leave_on_signals(tell)
        time.sleep(delay)


def leave_on_signals(tell: Callable[[str], None]) -> None:
    """Makes signals end this process as long as no task runs that has to end first."""

    def leave(signum: int, frame: FrameType | None) -> None:
        tell(f"{signal.Signals(signum).name}: ending the job; no task of it runs")
        raise SystemExit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, leave)
