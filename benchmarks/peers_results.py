"""What peers.py measures, and medians and paired ratios of it: pure functions."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from turns import Spread, unique


@dataclass(frozen=True)
class Round:
    """One turn of one contender.

    Attributes:
        workload: The label of the workload.
        contender: The name of the contender.
        index: Counts from 0; turns with the same index followed each other.
        steps: The steps of all workers together.
        seconds: Their time.
        cpu: CPU seconds of each process, by `chief:0`, `ps:0`, `worker:0`...
        sent: Bytes that the processes sent to each other.
    """

    workload: str
    contender: str
    index: int
    steps: int
    seconds: float
    cpu: dict[str, float]
    sent: int

    @property
    def steps_per_second(self) -> float:
        """The throughput of all workers together."""
        return self.steps / self.seconds

    @property
    def kilobytes(self) -> float:
        """Kilobytes (1,000 bytes) sent per step."""
        return self.sent / self.steps / 1e3

    def cpu_ms(self, job: str = "") -> float:
        """CPU milliseconds per step, of the processes of one job or of all."""
        used = sum(used for task, used in self.cpu.items() if task.startswith(job))
        return 1e3 * used / self.steps


@dataclass(frozen=True)
class Learnt:
    """What a contender has learnt, from the initial weights, in a number of steps.

    Attributes:
        contender: The name of the contender.
        index: Counts from 0, a fresh cluster each.
        steps: The steps of all workers together.
        loss: On images that nobody trained on.
        accuracy: On the same.
        training_loss: On the images that all trained on; None if not recorded.
    """

    contender: str
    index: int
    steps: int
    loss: float
    accuracy: float
    training_loss: float | None = None


@dataclass(frozen=True)
class Updates:
    """How many of a contender's steps its servers have counted.

    Attributes:
        contender: The name of the contender.
        steps: The steps of all workers, from the start to the end of its cluster.
        counted: The updates that the servers counted; None if they count none.
    """

    contender: str
    steps: int
    counted: int | None


@dataclass(frozen=True)
class Measured:
    """Everything about one workload.

    Attributes:
        workload: The label of the workload.
        environment: What the numbers depend on.
        rounds: The turns.
        learnt: The losses.
        updates: The updates, for contenders that took turns.
    """

    workload: str
    environment: dict[str, Any]
    rounds: list[Round] = field(default_factory=list)
    learnt: list[Learnt] = field(default_factory=list)
    updates: list[Updates] = field(default_factory=list)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Measured":
        """Reads what `to_dict` wrote."""
        return cls(
            value["workload"],
            value["environment"],
            [Round(**each) for each in value["rounds"]],
            [Learnt(**each) for each in value["learnt"]],
            [Updates(**each) for each in value["updates"]],
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return asdict(self)

    @property
    def contenders(self) -> list[str]:
        """The contenders, in the order in which they were named."""
        return unique(each.contender for each in [*self.learnt, *self.rounds])

    def spread(self, contender: str, value: Callable[[Round], float]) -> Spread:
        """Returns the spread of a value over the turns of a contender."""
        return Spread.of(value(r) for r in self.rounds if r.contender == contender)

    def ratio(
        self, contender: str, other: str, value: Callable[[Round], float]
    ) -> Spread:
        """Returns the spread of a contender's value over another's, turn by turn.

        Raises:
            ValueError: If they never took turns with each other.
        """
        mine, theirs = (
            {each.index: value(each) for each in self.rounds if each.contender == name}
            for name in (contender, other)
        )
        both = sorted(mine.keys() & theirs.keys())
        if not both:
            raise ValueError(
                f"{contender} and {other} took no turns with each other in "
                f"{self.workload}: name both in one --contenders"
            )
        return Spread.of_ratios(
            *([of[index] for index in both] for of in (mine, theirs))
        )

    def loss(self, contender: str) -> float | None:
        """Returns the median of the losses of a contender."""
        return _median(x.loss for x in self.learnt if x.contender == contender)

    def training_loss(self, contender: str) -> float | None:
        """Returns the median of its losses on what it was trained on; None if unknown."""
        of = [x.training_loss for x in self.learnt if x.contender == contender]
        return _median(x for x in of if x is not None)

    def lost(self, contender: str) -> int | None:
        """Returns the steps of a contender that its servers did not count."""
        of = [each for each in self.updates if each.contender == contender]
        if not of or any(each.counted is None for each in of):
            return None
        return sum(each.steps - (each.counted or 0) for each in of)


def merged(before: Sequence[Measured], after: Sequence[Measured]) -> list[Measured]:
    """Returns both, where the later measurement of a workload replaces the earlier."""
    by_workload = {each.workload: each for each in [*before, *after]}
    return list(by_workload.values())


def joined(first: Measured, second: Measured) -> Measured:
    """Returns two measurements of one workload as one.

    Turns of the second are later rounds, so that no ratio mixes the two.
    """
    rounds = 1 + max((each.index for each in first.rounds), default=-1)
    losses = 1 + max((each.index for each in first.learnt), default=-1)
    about = {**second.environment, **first.environment}
    about["commands"] = [
        *first.environment["commands"],
        *second.environment["commands"],
    ]
    return Measured(
        first.workload,
        about,
        first.rounds + [replace(r, index=r.index + rounds) for r in second.rounds],
        first.learnt + [replace(x, index=x.index + losses) for x in second.learnt],
        first.updates + second.updates,
    )


def _median(numbers: Iterable[float]) -> float | None:
    numbers = list(numbers)
    return statistics.median(numbers) if numbers else None


def rate(turn: Round) -> float:
    """The steps per second of a turn."""
    return turn.steps_per_second


def cpu(turn: Round) -> float:
    """The CPU milliseconds per step of a turn."""
    return turn.cpu_ms()
