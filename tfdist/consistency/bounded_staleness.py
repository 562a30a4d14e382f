"""Bound on how far a worker gets ahead of what another has read. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.consistency.numbers import count_of
from tfdist.consistency.policy import Gradient, Phase, State, Step


@dataclass(frozen=True)
class BoundedStaleness:
    """A step writes only while few others have written since it began to read.

    The *staleness* of a step is the number of steps of other workers that were allowed to
    write between the start of the step, before it reads any weight, and its own write. It
    is at most `max_staleness`, for every step. Where several steps share a message, each
    of them starts, waits and counts as a step of its own.

    So a fast worker waits for a slow one, but at its write and not before: it has
    computed meanwhile. With 0, steps run one after the other, as in one process. With
    `math.inf`, nobody waits, and this is `Asynchronous()`.

    The bound is that of Q. Ho et al., "More Effective Distributed ML via a Stale
    Synchronous Parallel Parameter Server" (NIPS 2013), counted in steps that were written
    and not in clocks of workers, and so exact; M. Li et al., "Scaling Distributed Machine
    Learning with the Parameter Server" (OSDI 2014), section 3.5, call it bounded delay.

    Cost: a step asks one ps for permission to start and to write. Its messages to that ps
    carry the requests; each further ps takes three messages per step.

    >>> policy = BoundedStaleness(1)
    >>> slow = Step(worker=0, phase=Phase.COMPUTING, began=0)
    >>> fast = Step(worker=1, phase=Phase.READY, began=0)
    >>> policy.may_write(fast, State(written=0, steps=(slow, fast)))
    True
    >>> policy.may_write(fast, State(written=1, steps=(slow, fast)))
    False

    Args:
        max_staleness: The bound: an integer from 0, or `math.inf`.

    Raises:
        TypeError: If it is neither an integer nor infinite.
        ValueError: If it is negative.
    """

    max_staleness: float

    def __post_init__(self) -> None:
        bound = self.max_staleness
        if not (isinstance(bound, float) and bound == math.inf):
            bound = count_of(
                "BoundedStaleness", "max_staleness", bound, 0, ", or math.inf"
            )
        object.__setattr__(self, "max_staleness", bound)

    @property
    def is_free(self) -> bool:
        """True if no step ever waits: without a bound."""
        return self.max_staleness == math.inf

    def may_start(self, step: Step, state: State) -> bool:
        """Returns True if all steps can still keep the bound if this one starts now.

        A write in flight counts against it: the step may read weights from before.
        """
        writing = sum(1 for _ in state.in_phase(Phase.WRITING))
        return _feasible([*self._rooms(state, step), self.max_staleness - writing])

    def may_write(self, step: Step, state: State) -> bool:
        """Returns True if all other steps can still keep the bound after this write."""
        return _feasible(room - 1 for room in self._rooms(state, step))

    def counts(self, gradient: Gradient, state: State) -> bool:
        """Yes: a step that would be too stale waits before, and is not dropped."""
        return True

    def _rooms(self, state: State, but: Step) -> list[float]:
        """Returns how many more writes each step can bear before its own."""
        return [
            self.max_staleness - state.staleness(step)
            for step in state.in_phase(Phase.COMPUTING, Phase.READY)
            if step.worker != but.worker
        ]


def _feasible(rooms: Iterable[float]) -> bool:
    """Returns True if all steps can write, each after at most its room of others.

    Steps write one by one, the one with the least room first. This is the schedule of
    earliest deadlines, which is feasible if any schedule is (J. R. Jackson, 1955). So
    the oldest step may always write, and no set of steps waits for each other.
    """
    return all(room >= before for before, room in enumerate(sorted(rooms)))
