"""No worker waits for another. Pure."""

from dataclasses import dataclass

from tfdist.consistency.policy import Gradient, State, Step


@dataclass(frozen=True)
class Asynchronous:
    """Each step starts and writes at once, regardless of the others.

    The fastest, and the default. A gradient may be computed from weights that others have
    changed meanwhile: with W equal workers, W - 1 steps of others on average, and without
    limit next to a slow worker (J. Dean et al., "Large Scale Distributed Deep Networks",
    NIPS 2012, section 4.1).

    Cost: none.
    """

    @property
    def is_free(self) -> bool:
        """True, because no step ever waits."""
        return True

    def may_start(self, step: Step, state: State) -> bool:
        """Yes."""
        return True

    def counts(self, gradient: Gradient, state: State) -> bool:
        """Yes."""
        return True
