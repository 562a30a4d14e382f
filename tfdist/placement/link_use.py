"""Time for which a worker waits for its link in a step, and advice to shorten it."""

from dataclasses import dataclass

LEAST_SHARE = 0.1
"""The least share of a step that is worth advice about links."""

STEPS = 5
"""The number of steps of the `ExchangeEvery` that is proposed."""


@dataclass(frozen=True)
class Traffic:
    """The bytes that a step moves: `pulled` to a worker, and `pushed` from it.

    The large ones are pushed in `segments` parts, one after the other. The worker's
    link takes `seconds_per_byte`: 0 if it is not what binds.
    """

    pulled: float
    pushed: float
    segments: int = 1
    seconds_per_byte: float = 0.0


@dataclass(frozen=True)
class LinkUse:
    """The share of a worker's step in which it may wait for its link: an estimate.

    From bytes and the rate of the link, as if nothing else used it and nothing were computed
    meanwhile. What is pulled while a later segment is pushed takes no time of its own.

    Attributes:
        traffic: The bytes that a step moves.
        step_seconds: How long a step took on a worker, in the last epoch of `fit`.
        may_narrow: Whether the strategy could take `wire_dtype="bfloat16"` instead.
        may_merge: Whether it could exchange values once in several steps instead.

    >>> use = LinkUse(Traffic(1e6, 1e6, 2, 4e-8), 0.08)
    >>> use.weights, use.gradients
    (0.25, 0.5)
    """

    traffic: Traffic
    step_seconds: float
    may_narrow: bool = False
    may_merge: bool = False

    @property
    def weights(self) -> float:
        """The share in which it waits for weights."""
        return self._share(self.traffic.pulled / self.traffic.segments)

    @property
    def gradients(self) -> float:
        """The share in which its gradients are in flight, and the next weights wait."""
        return self._share(self.traffic.pushed)

    def _share(self, amount: float) -> float:
        return min(amount * self.traffic.seconds_per_byte / self.step_seconds, 1.0)

    def __str__(self) -> str:
        share = min(self.weights + self.gradients, 1.0)
        if share < LEAST_SHARE:
            return ""
        ways = []
        if self.may_narrow:
            # Half of the bits, and one exchange in `STEPS`: time goes by bytes.
            ways.append(('wire_dtype="bfloat16"', share / 2))
        if self.may_merge:
            ways.append(
                (f"exchange=tfdist.ExchangeEvery({STEPS})", share * (1 - 1 / STEPS))
            )
        saved = [f"{way} would take off up to {each:.0%}" for way, each in ways]
        waits = (
            f"a step took {1e3 * self.step_seconds:,.1f} ms. By the rate of its link, a worker "
            f"waits up to {self.weights:.0%} of it for weights and {self.gradients:.0%} for "
            "its gradients to arrive"
        )
        return ": ".join(filter(None, [waits, ", ".join(saved)]))
