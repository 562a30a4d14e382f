"""Interface of consistency policies, and the state that they decide on. Pure."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


class Phase(enum.IntEnum):
    """The phase of a worker's step."""

    # From 1: gates keep these numbers on a ps, where 0 is an idle worker.
    STARTING = 1
    COMPUTING = 2
    READY = 3
    WRITING = 4


@dataclass(frozen=True)
class Step:
    """A step that a worker runs.

    Attributes:
        worker: The index of the worker.
        ticket: How many steps of all workers had asked to start before it.
        phase: Whether it waits to start, has read the weights or may just do so, waits to
            write, or may write.
        began: How many writes of other workers were complete when it started. One that
            was in flight then is not among them: it may have changed weights that the
            step read later.
        round: How many updates had been applied when it started.
    """

    worker: int
    ticket: int = 0
    phase: Phase = Phase.STARTING
    began: int = 0
    round: int = 0


@dataclass(frozen=True)
class Gradient:
    """A gradient that a step has computed.

    Attributes:
        worker: The index of its worker.
        round: How many updates had been applied when its step started.
        staleness: How many steps of other workers may have written since then.
    """

    worker: int
    round: int
    staleness: int


@dataclass(frozen=True)
class State:
    """The known state of all steps.

    Attributes:
        written: How many steps were allowed to write; those of a round, once it is full.
        round: How many updates have been applied.
        aggregated: The workers whose gradients count towards the next update.
        steps: The steps that have asked to start and have not finished, by their tickets.
    """

    written: int = 0
    round: int = 0
    aggregated: frozenset[int] = field(default_factory=frozenset)
    steps: tuple[Step, ...] = ()

    def in_phase(self, *phases: Phase) -> Iterator[Step]:
        """Yields the steps in one of these phases, the oldest first."""
        return (step for step in self.steps if step.phase in phases)

    def staleness(self, step: Step) -> int:
        """Returns how many steps of others may have written since a step started."""
        return self.written - step.began


class Consistency(Protocol):
    """Decides when a step may start, and which gradients count.

    A policy of your own needs these two methods. It may also have `may_write`, with the
    arguments of `may_start`, for steps whose gradients have been computed, and a number
    `replicas_to_aggregate` of the gradients that make an update, 1 by default.
    """

    def may_start(self, step: Step, state: State) -> bool:
        """Returns True if a step may read the weights and start; else it waits."""

    def counts(self, gradient: Gradient, state: State) -> bool:
        """Returns True if a gradient is applied. If not, it is dropped."""


def check_consistency(policy: object) -> None:
    """Checks the argument of a strategy.

    Raises:
        TypeError: If it lacks one of the two methods, or is a class.
    """
    # A class has the methods too, and would pass the check below.
    if isinstance(policy, type):
        raise TypeError(
            f"consistency must be a policy, not a class; received {policy.__name__}: write "
            f"{policy.__name__}()"
        )
    methods = ("may_start", "counts")
    lacking = [name for name in methods if not callable(getattr(policy, name, None))]
    if lacking:
        raise TypeError(
            "consistency says when a step may start and which gradients count: "
            "tfdist.Asynchronous(), tfdist.BoundedStaleness(8), tfdist.Synchronous(), or "
            "an object with the methods may_start(step, state) and counts(gradient, "
            f"state); received {policy!r}, which has no {' and no '.join(lacking)}"
        )


def for_workers(policy: "Consistency", num_workers: int) -> "Consistency":
    """Returns a policy for this number of workers.

    Raises:
        ValueError: If it cannot work with so few.
    """
    # A policy of the user need not know how many workers there are.
    resolve = getattr(policy, "for_workers", None)
    return policy if resolve is None else resolve(num_workers)
