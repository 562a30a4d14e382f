"""The progress that a script under faults reports, as lines of JSON in a file.

    {"time": 1700000000.5, "step": 40}
    {"time": 1700000009.0, "steps": 402, "expected": 400, "in_flight": 8, "ahead": 1}

The environment variable LAUNCH_PROGRESS names the file. Without it nothing is written, so
the same script also runs on its own.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tf_config import contract


@dataclass(frozen=True)
class Result:
    """The work of a script until its end.

    Attributes:
        steps: The number of steps applied, by the optimizer's own count.
        expected: The number of steps requested.
        in_flight: How many steps may be in flight at once. Each fault may repeat this
            many, and no more.
        ahead: How many steps beyond its position the checkpoint contained, from which
            the script last resumed: these were run twice.
    """

    steps: int
    expected: int
    in_flight: int
    ahead: int = 0


@dataclass(frozen=True)
class Progress:
    """The reports of a script, in order.

    Attributes:
        steps: The time of each report, in seconds since 1970, and its step.
        result: The last result; None if there is none.
    """

    steps: Sequence[tuple[float, int]] = field(default_factory=tuple)
    result: Result | None = None

    @property
    def furthest(self) -> int:
        """The highest step reported."""
        return max((step for _, step in self.steps), default=0)

    @property
    def most_repeated(self) -> float:
        """The longest time, in seconds, whose steps were repeated after a restart.

        >>> Progress([(10.0, 1), (20.0, 2), (25.0, 3), (40.0, 2)]).most_repeated
        5.0
        """
        kept: list[tuple[float, int]] = []
        most = 0.0
        for when, step in self.steps:
            last = kept[-1][0] if kept else when
            while kept and kept[-1][1] >= step:
                most = max(most, last - kept.pop()[0])
            kept.append((when, step))
        return most


def report_step(step: int) -> None:
    """Reports that the script has reached a step, counted from its very first start."""
    _write({"step": step})


def report_result(
    steps: int, expected: int, in_flight: int = 0, ahead: int = 0
) -> None:
    """Reports the script's progress; see `Result`."""
    _write(asdict(Result(steps, expected, in_flight, ahead)))


def _write(values: dict[str, int]) -> None:
    if path := os.environ.get(contract.PROGRESS):
        line = json.dumps({"time": time.time(), **values}) + "\n"
        # Opened for each line, so that a kill loses nothing that was reported before.
        with open(path, "a") as file:
            file.write(line)


def read(path: str) -> Progress:
    """Reads the reports; ignores a line that was cut short by a kill."""
    steps: list[tuple[float, int]] = []
    result = None
    try:
        with open(path) as file:
            lines = file.readlines()
    except FileNotFoundError:
        return Progress()
    for line in lines:
        try:
            value = json.loads(line)
            when = value.pop("time")
            if "step" in value:
                steps.append((when, value["step"]))
            else:
                result = Result(**value)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return Progress(steps, result)
