"""A trace of steps in Chrome's format, which Perfetto opens. Pure."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class StepTimes(NamedTuple):
    """The times of one step, in seconds since the Unix epoch.

    `pulled` and `pushed` are by the clock of the worker's machine, all others by the
    clock of the ps at which steps take their turns.

    Attributes:
        worker: The index of the worker.
        asked: When it asked to start.
        started: When it was let start.
        pulled: When all that it reads had arrived at the worker.
        pushed: When the worker had computed what it writes.
        arrived: When that had arrived at the ps, which is when it asked to write.
        turn: When it was allowed to write.
        written: When it had written.
    """

    worker: float
    asked: float
    started: float
    pulled: float
    pushed: float
    arrived: float
    turn: float
    written: float


PARTS = ("wait to start", "pull", "compute", "push", "wait to write", "write")
"""The parts of a step, each between two of its times."""


def events_of(
    rows: Iterable[Sequence[float]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns the events of steps, in microseconds, one process per replica.

    A part that takes no time, such as a wait of an asynchronous step, has no event.

    >>> [step, pull] = events_of([(1, 0, 0, 2e-3, 2e-3, 2e-3, 2e-3, 2e-3)], "01")[2:]
    >>> pull["name"], pull["pid"], pull["ts"], pull["dur"]
    ('pull', 1, 0.0, 2000.0)
    """
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": number,
            "args": {"name": f"worker:{name}"},
        }
        for number, name in enumerate(names)
    ]
    for row in map(StepTimes._make, rows):
        events.append(_event("step", row.worker, row.asked, row.written))
        ends = row[2:]
        for part, begin, end in zip(PARTS, row[1:-1], ends, strict=True):
            if end > begin:
                events.append(_event(part, row.worker, begin, end))
    return events


def _event(name: str, worker: float, begin: float, end: float) -> dict[str, Any]:
    return {
        "name": name,
        # Chrome's letter for an event with a duration; M, above, is for metadata.
        "ph": "X",
        "pid": int(worker),
        "tid": 0,
        "ts": 1e6 * begin,
        "dur": 1e6 * (end - begin),
    }


class TimelineFile:
    """The file of a timeline, to which events are added.

    It is JSON at any time.

    Args:
        path: The path; a file that is there is replaced.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)
        with open(self._path, "w") as file:
            file.write("[")
            self._end = file.tell()
            file.write("\n]\n")
        self._is_empty = True

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Adds events."""
        lines = [f"\n{json.dumps(each)}" for each in events]
        if not lines:
            return
        with open(self._path, "r+") as file:
            file.seek(self._end)
            file.write(("" if self._is_empty else ",") + ",".join(lines))
            self._end, self._is_empty = file.tell(), False
            file.write("\n]\n")
