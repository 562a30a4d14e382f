"""Jobs whose supervisor runs on this machine, as under ssh and Ray.

If a host is lost, the whole job runs again elsewhere: the addresses of all tasks are in all
others, so every task starts again, and the program continues from its last checkpoint.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import NamedTuple

from launch.engines import background
from launch.engines.engine import ENDED, RUNNING, STARTING, EngineError, Status
from launch.engines.record import Record
from launch.job.job import Job
from launch.loopback.cluster import make_log_dir
from launch.supervise import policy
from tf_config.contract import EXIT_USAGE

Tell = Callable[[str], None]
Work = Callable[[Record, int, Callable[[], None]], int]
"""Runs a job, given its record, the file that holds it, and whom to tell of its start."""

_MOMENT = 0.1  # seconds
_TEARDOWN_TIMEOUT = 30.0


class RunEnd(NamedTuple):
    """The end of one run of a job.

    Attributes:
        code: Its exit status.
        must_move: Whether its tasks have to run elsewhere.
        is_free: Whether that is not for a fault, and counts for no restart.
    """

    code: int
    must_move: bool = False
    is_free: bool = False


def run(record: Record, work: Work, tell: Tell) -> int:
    """Runs a job to its end; however this process ends, the job ends with it."""
    make_log_dir(record.log_dir)
    with record.held() as lock:
        tell(record.announcement)
        return work(record, lock, lambda: None)


def detach(record: Record, work: Work) -> None:
    """Starts a process of its own that runs a job, and waits until it says that it has."""
    make_log_dir(record.log_dir)
    output = os.path.join(record.log_dir, "launch.log")

    def run_there(started: Callable[[], None]) -> None:
        found = replace(record, output=output)
        with found.held() as lock:
            work(found, lock, started)

    background.run(output, run_there)


def run_and_move(
    job: Job, record: Record, once: Callable[[str], RunEnd], tell: Tell
) -> int:
    """Runs a job, again as long as its tasks have to move, and records its exit status.

    Args:
        job: Says how often, and where the logs of its first run are.
        record: Gets the exit status, which is that of the last run.
        once: Runs it with its logs in a directory. An `EngineError` says that nothing was
            started.
        tell: Tells the user something.
    """
    moves: list[float] = []
    number, code, log_dir = 0, 1, job.log_dir
    try:
        while True:
            _leave_on_signals(tell)
            code, must_move, is_free = once(log_dir)
            if not (code and must_move):
                return code
            number += 1
            log_dir = os.path.join(job.log_dir, f"move-{number}")
            if is_free:
                continue
            now, window = time.monotonic(), job.restart_window
            delay = policy.restart_delay(moves, now, job.max_restarts, window)
            if delay is None:
                tell("too many moves (--max_restarts): not starting the job again")
                return code
            moves.append(now)
            # `foreground.run` leaves these signals ignored.
            _leave_on_signals(tell)
            time.sleep(delay)
    except EngineError:
        code = EXIT_USAGE
        raise
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        record.write_end(code)


def _leave_on_signals(tell: Tell) -> None:
    """Makes signals end this process as long as no task runs that has to end first."""

    def leave(signum: int, frame: FrameType | None) -> None:
        tell(f"{signal.Signals(signum).name}: ending the job; no task of it runs")
        raise SystemExit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, leave)


class Tail:
    """The lines of a file as it grows; none as long as there is no file."""

    def __init__(self, path: str, prefix: str = "") -> None:
        self._path = path
        self._prefix = prefix
        self._position = 0
        self._rest = ""

    def lines(self) -> Iterator[str]:
        """Yields the lines that are complete by now."""
        with (
            contextlib.suppress(FileNotFoundError),
            open(self._path, errors="replace") as log,
        ):
            log.seek(self._position)
            for text in iter(log.readline, ""):
                self._rest += text
                if text.endswith("\n"):
                    yield f"{self._prefix}{self._rest[:-1]}"
                    self._rest = ""
            self._position = log.tell()

    def rest(self) -> Iterator[str]:
        """Yields the last line if nothing has ended it."""
        if self._rest:
            yield f"{self._prefix}{self._rest}"
            self._rest = ""


def status(record: Record) -> Status:
    """Returns how a job stands."""
    if record.is_alive:
        logs = [log for *_, log in record.tasks.values()]
        return Status(RUNNING if any(map(os.path.exists, logs)) else STARTING)
    if not (end := record.end):
        return Status(ENDED, reason="its launcher was killed")
    return Status(ENDED, end["code"])


def follow(record: Record) -> Iterator[str]:
    """Yields the launcher's output; if that is on a terminal, the tasks' output."""
    tails = [Tail(record.output)]
    if not record.output:
        width = max(map(len, record.tasks), default=0) + 2
        tails = [
            Tail(log, f"[{name}]".ljust(width) + " ")
            for name, (*_, log) in record.tasks.items()
        ]
    while True:
        # Before the look at the files, or what is written between the two would be
        # lost.
        is_alive = record.is_alive
        for each in tails:
            yield from each.lines()
        if not is_alive:
            break
        time.sleep(_MOMENT)
    for each in tails:
        yield from each.rest()


def logs(record: Record, task: str) -> Iterator[str]:
    """Yields the lines of a task's log file, which is on this machine."""
    if task not in record.tasks:
        raise EngineError(
            f"job {record.name} has no task {task!r}; it has {', '.join(record.tasks)}"
        )
    path = record.tasks[task][2]
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as log:
        yield from (line.rstrip("\n") for line in log)


def wait_for_end(record: Record, timeout: float) -> None:
    """Waits until no process of a job is alive here, or for some seconds."""
    deadline = time.monotonic() + timeout
    while record.is_alive and time.monotonic() < deadline:
        time.sleep(_MOMENT)


def cancel(record: Record) -> None:
    """Ends a job as Ctrl-C would, and with SIGKILL if that does not end it in time."""
    for signum, timeout in (
        (signal.SIGTERM, 2 * record.grace_period + _TEARDOWN_TIMEOUT),
        (signal.SIGKILL, record.grace_period + _TEARDOWN_TIMEOUT),
    ):
        if not record.is_alive:
            return
        record.signal(signum)
        wait_for_end(record, timeout)
    if record.is_alive:
        raise EngineError(
            f"job {record.name} does not end: look at process {record.pid} and its children"
        )
