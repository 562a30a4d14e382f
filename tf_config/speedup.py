"""The file that `launch.speedup` writes and `tfdist.research.simulation` reads.

It holds what was measured at each number of workers. Times are in seconds, amounts of
data in bytes, and rates of links in bytes per second.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "tfdist-speedup-1"


class SpeedupFileError(ValueError):
    """A file that is not one of `launch.speedup`."""


@dataclass(frozen=True)
class Epoch:
    """One epoch of `fit`.

    Attributes:
        seconds: How long its steps took, without validation.
        steps: How many there were.
        messages: In how many messages the chief asked for them.
        logs: Keras's logs at its end.
        cpu: CPU seconds of each task, by its name.
        sent: Bytes that each task sent to others; none if they were not counted.
        received: Bytes that each task received.
        other_cpu: CPU seconds that the machine spent on everything else.
    """

    seconds: float
    steps: int
    messages: int = 0
    logs: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    sent: Mapping[str, float] = field(default_factory=dict)
    received: Mapping[str, float] = field(default_factory=dict)
    other_cpu: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run of the script.

    Attributes:
        workers: The number of workers.
        consistency: The policy that was asked for.
        repeat: The number of the run with these two, from 0.
        status: The script's exit status.
        seconds: How long the whole job took, with its start and its end.
        policy: The policy under which the steps ran, as the script reported it.
        epochs: Its epochs.
    """

    workers: int
    consistency: str
    repeat: int
    status: int
    seconds: float
    policy: str = ""
    epochs: tuple[Epoch, ...] = ()

    @property
    def steady(self) -> tuple[Epoch, ...]:
        """The epochs after the first, which includes traces, or the only one."""
        return self.epochs[1:] or self.epochs

    @property
    def seconds_per_epoch(self) -> float:
        """The median of the steady epochs."""
        return statistics.median(each.seconds for each in self.steady)

    @property
    def steps_per_second(self) -> float:
        """The figures of all steady epochs together."""
        return self.total("steps") / self.total("seconds")

    def total(self, name: str) -> float:
        """Returns the sum of a number over the steady epochs."""
        return sum(getattr(each, name) for each in self.steady)

    def total_of(self, name: str, job: str) -> float:
        """Returns the sum of a number per task over a job's tasks and the steady epochs.

        Args:
            name: `cpu`, `sent` or `received`.
            job: `chief`, `ps`, `worker` or `evaluator`.
        """
        return sum(
            amount
            for each in self.steady
            for task, amount in getattr(each, name).items()
            if task.partition(":")[0] == job
        )


@dataclass(frozen=True)
class Speedup:
    """Measurements of `launch.speedup`.

    Attributes:
        program: The script and its flags.
        num_ps: The number of ps.
        cores: The cores of the machine, which all tasks share.
        rate: The rate of each task's link per direction; None if links were not shaped.
        burst: How many bytes pass such a link at once after a pause.
        runs: The runs, in their order.
    """

    program: tuple[str, ...]
    num_ps: int
    cores: int
    rate: float | None = None
    burst: int = 0
    runs: tuple[Run, ...] = ()

    def of(self, consistency: str, workers: int) -> list[Run]:
        """Returns the successful runs with a policy and a number of workers."""
        return [
            run
            for run in self.runs
            if (run.consistency, run.workers) == (consistency, workers) and run.epochs
        ]

    def speedup(self, consistency: str, workers: int) -> float | None:
        """Returns the steps per second against those of the smallest size.

        The median of the ratios of runs of the same repeat, which were measured close to
        each other. None if no repeat has both.
        """
        smallest = {run.repeat: run for run in self.of(consistency, self.sizes[0])}
        ratios = [
            run.steps_per_second / smallest[run.repeat].steps_per_second
            for run in self.of(consistency, workers)
            if run.repeat in smallest
        ]
        return statistics.median(ratios) if ratios else None

    @property
    def policies(self) -> Sequence[str]:
        """The policies that were asked for, in their order."""
        return list(dict.fromkeys(run.consistency for run in self.runs))

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of workers, in increasing order."""
        return sorted({run.workers for run in self.runs})

    def to_json(self) -> str:
        """Returns the file's text; `from_json` reads it."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Speedup":
        """Reads what `to_json` wrote.

        Raises:
            SpeedupFileError: If it is something else.
        """
        try:
            value = json.loads(text)
            if value.pop("format") != FORMAT:
                raise ValueError("another format")
            value["runs"] = tuple(map(_run, value["runs"]))
            value["program"] = tuple(value["program"])
            return cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpeedupFileError(
                "this is not a file of `python -m launch.speedup` in the format "
                f"{FORMAT} ({error}): measure again"
            ) from None


def _run(value: dict[str, Any]) -> Run:
    return Run(**{**value, "epochs": tuple(Epoch(**each) for each in value["epochs"])})
