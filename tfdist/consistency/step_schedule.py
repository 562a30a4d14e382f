"""Runs a policy: who may start and write after each event. Pure."""

from dataclasses import dataclass, field, replace
from typing import Any

from tfdist.consistency.policy import Consistency, Gradient, Phase, State, Step


@dataclass
class Released:
    """The steps and gradients that an event releases.

    Attributes:
        started: The workers whose steps may start.
        written: The gradients that may be written or count towards the next update.
        dropped: The gradients that do not count.
        updated: Whether the gradients of a round have made an update.
    """

    started: list[int] = field(default_factory=list)
    written: list[Gradient] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    updated: bool = False


class StepSchedule:
    """The steps of a cluster under a policy.

    A worker's step `arrive`s, is `computed`, and has `finished` once it is written. In
    between, the policy may let it wait. Each call returns what may continue now: of the steps
    that wait to write the oldest first, then those that wait to start, in their order.

    >>> from tfdist.consistency.bounded_staleness import BoundedStaleness
    >>> one_by_one = StepSchedule(BoundedStaleness(0))
    >>> one_by_one.arrive(0).started, one_by_one.arrive(1).started
    ([0], [])
    >>> one_by_one.computed(0).written
    [Gradient(worker=0, round=0, staleness=0)]
    >>> one_by_one.finished(0).started
    [1]

    Args:
        policy: The policy, resolved for the number of workers.

    Attributes:
        state: The policy's knowledge of all steps.
    """

    def __init__(self, policy: Consistency) -> None:
        self.policy = policy
        self.state = State()
        self._tickets = 0

    def arrive(self, worker: int) -> Released:
        """A worker asks to start a step. Its last one is over, or lost."""
        self._remove(worker)
        step = Step(worker, ticket=self._tickets)
        self._tickets += 1
        self.state = replace(self.state, steps=(*self.state.steps, step))
        return self._release()

    def computed(self, worker: int) -> Released:
        """A worker has computed the gradient of its step."""
        self._change(worker, phase=Phase.READY)
        return self._release()

    def finished(self, worker: int) -> Released:
        """A worker's write is complete on every ps, or it was told that it is dropped."""
        self._remove(worker)
        return self._release()

    def leave(self, worker: int) -> Released:
        """A worker is lost, and its step with it."""
        return self.finished(worker)

    def _release(self) -> Released:
        released = Released()
        may_write = getattr(self.policy, "may_write", _always)
        # Writes first, so that steps which start afterwards read them.
        for step in list(self.state.in_phase(Phase.READY)):
            if may_write(step, self.state):
                self._write(step, released)
        for step in list(self.state.in_phase(Phase.STARTING)):
            if self.policy.may_start(step, self.state):
                self._start(step)
                released.started.append(step.worker)
        return released

    def _start(self, step: Step) -> None:
        writing = sum(1 for _ in self.state.in_phase(Phase.WRITING))
        self._change(
            step.worker,
            phase=Phase.COMPUTING,
            # A write in flight may reach a ps before or after this step reads: it
            # counts as later.
            began=self.state.written - writing,
            round=self.state.round,
        )

    def _write(self, step: Step, released: Released) -> None:
        gradient = Gradient(step.worker, step.round, self.state.staleness(step))
        if not self.policy.counts(gradient, self.state):
            self._remove(step.worker)
            released.dropped.append(gradient)
            return
        released.written.append(gradient)
        aggregated = self.state.aggregated | {step.worker}
        self.state = replace(self.state, aggregated=aggregated)
        enough = getattr(self.policy, "replicas_to_aggregate", 1)
        # The gradients of a round are written by its update, so their steps end here.
        if enough == 1:
            self._change(step.worker, phase=Phase.WRITING)
        else:
            self._remove(step.worker)
        if len(aggregated) >= enough:
            released.updated = True
            self.state = replace(
                self.state,
                written=self.state.written + len(aggregated),
                round=self.state.round + 1,
                aggregated=frozenset(),
            )

    def _change(self, worker: int, **changes: Any) -> None:
        steps = tuple(
            replace(step, **changes) if step.worker == worker else step
            for step in self.state.steps
        )
        self.state = replace(self.state, steps=steps)

    def _remove(self, worker: int) -> None:
        steps = tuple(step for step in self.state.steps if step.worker != worker)
        self.state = replace(self.state, steps=steps)


def _always(step: Step, state: State) -> bool:
    return True
