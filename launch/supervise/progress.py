"""The speed of a job, from the reports of its program: the launcher's last line."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from launch.console.console import Console
from launch.job.job import Job
from launch.supervise.policy import leader
from tf_config import Task
from tf_config.whole_file import write_whole

FILE = "training.txt"
"""The file of a job's log directory that has its last line, for `launch.jobs status`."""

AUTO, OFF = MODES = ("auto", "off")

_INTERVAL = 1.0  # seconds
# A step, or a validation, may take longer than the interval of the reports.
_PATIENCE = 10.0
_MOST_SHARES = 4


def line(
    numbers: Mapping[str, float],
    restarts: int,
    age: float,
) -> str:
    """Describes the newest report.

    Args:
        numbers: The numbers of the report: `steps`, their `seconds`, the mean
            `staleness`, and the functions that each worker has finished, by its name.
        restarts: How often the job has restarted tasks.
        age: Seconds since the report came.

    >>> line({"steps": 90, "seconds": 2, "worker:0": 5, "worker:1": 9}, 1, 0)
    '45 steps/s; worker:0 36%, worker:1 64%; 1 restart'
    """
    words = [f"{numbers['steps'] / numbers['seconds']:.3g} steps/s"]
    if age > _PATIENCE:
        words = [f"no step for {age:.0f} s"]
    # Since the program began: within a second, all that ends may be one worker's.
    done = {each: n for each, n in numbers.items() if each.startswith("worker:")}
    if shares := _shares(done):
        words.append(shares)
    if "staleness" in numbers:
        words.append(f"staleness {numbers['staleness']:.2g}")
    if restarts:
        words.append(f"{restarts} restart{'s' * (restarts > 1)}")
    return "; ".join(words)


def _shares(done: Mapping[str, float]) -> str:
    """Returns each worker's share of the work, or of many workers the extremes."""
    total = sum(done.values())
    if not total:
        return ""
    shares = {name: f"{name} {count / total:.0%}" for name, count in done.items()}
    if len(done) <= _MOST_SHARES:
        return ", ".join(shares.values())
    least, most = min(done, key=done.__getitem__), max(done, key=done.__getitem__)
    return f"{len(done)} workers, from {shares[least]} to {shares[most]}"


class ProgressLine:
    """Shows the line while the job's leader trains, and writes it to a file."""

    def __init__(self, job: Job, console: Console, restarts: Callable[[], int]) -> None:
        self._is_off = job.progress == OFF
        self._leader = leader(job.plans)
        self._console = console
        self._restarts = restarts
        self._path = Path(job.log_dir, FILE)
        self._numbers: Mapping[str, float] = {}
        self._heard = self._shown = 0.0

    def hear(self, task: Task, numbers: Mapping[str, float]) -> None:
        """Takes the numbers that a task has reported."""
        if task == self._leader and numbers.get("seconds") and not self._is_off:
            self._numbers = {"steps": 0, **numbers}
            self._heard = time.monotonic()

    @property
    def interval(self) -> float:
        """The interval between calls of `check`, in seconds."""
        return _INTERVAL if self._numbers else math.inf

    def check(self) -> None:
        """Shows the line, if it is time."""
        now = time.monotonic()
        if not self._numbers or now - self._shown < _INTERVAL:
            return
        self._shown = now
        age = now - self._heard
        text = line(self._numbers, self._restarts(), age)
        self._console.status(text)
        # A full disk ends no training.
        with contextlib.suppress(OSError):
            write_whole(self._path, f"{text}\n".encode())

    def end(self) -> None:
        """Removes the line."""
        self._numbers = {}
        self._console.status("")
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def read(log: str) -> str:
    """Returns the last line of a running job, or ''; `log` is a log file of a task."""
    with contextlib.suppress(OSError):
        return Path(os.path.dirname(log), FILE).read_text().strip()
    return ""
