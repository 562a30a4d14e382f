"""The replicas whose gradients make a step, by the policy of rounds."""

from dataclasses import replace

from tfdist.consistency.policy import Gradient, State
from tfdist.consistency.synchronous import Synchronous


class Round:
    """The replicas that have added a gradient in the current step and are waiting.

    `Synchronous` decides which gradients count, as it does for Keras's `fit`. A replica
    waits from its arrival until it is released, so it adds at most one gradient per step.
    The policy is resolved for the number of replicas.

    >>> policy = Synchronous(backup_workers=1).for_workers(3)
    >>> current = Round(step=7, policy=policy)
    >>> current.arrive(0, 7), current.is_complete
    ([], False)
    >>> current.arrive(1, 6)  # stale: it need not wait
    [1]
    >>> current.arrive(2, 7), current.is_complete
    ([], True)
    >>> current.advance(8)
    [0, 2]
    """

    def __init__(self, step: int, policy: Synchronous) -> None:
        self._policy = policy
        self._state = State(round=step)

    @property
    def step(self) -> int:
        """The current step."""
        return self._state.round

    @property
    def is_complete(self) -> bool:
        """True if enough replicas have added a gradient in this step."""
        enough = self._policy.replicas_to_aggregate or 1
        return len(self._state.aggregated) >= enough

    def arrive(self, replica: int, step: int) -> list[int]:
        """Records a gradient of a step's variables; returns the replicas to release now."""
        gradient = Gradient(replica, round=step, staleness=0)
        if not self._policy.counts(gradient, self._state):
            return [replica]
        aggregated = self._state.aggregated | {replica}
        self._state = replace(self._state, aggregated=aggregated)
        return []

    def leave(self, replica: int) -> None:
        """Records that a replica was restarted and is no longer waiting."""
        aggregated = self._state.aggregated - {replica}
        self._state = replace(self._state, aggregated=aggregated)

    def advance(self, step: int) -> list[int]:
        """Begins another step, and returns the replicas to release into it."""
        released = sorted(self._state.aggregated)
        self._state = State(round=step)
        return released
