"""The replicas whose gradients make a step. Pure."""


class Round:
    """The replicas that have added a gradient in the current step and are waiting.

    A replica waits from its arrival until it is released, so it adds at most one
    gradient per step.

    >>> current = Round(step=7, enough=2)
    >>> current.arrive(0, 7), current.is_complete
    ([], False)
    >>> current.arrive(1, 6)  # stale: it need not wait
    [1]
    >>> current.arrive(2, 7), current.is_complete
    ([], True)
    >>> current.advance(8)
    [0, 2]

    Args:
        step: The current step.
        enough: How many replicas' gradients make a step.
    """

    def __init__(self, step: int, enough: int) -> None:
        self.step = step
        self._enough = enough
        self._waiting: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether enough replicas have added a gradient in this step."""
        return len(self._waiting) >= self._enough

    def arrive(self, replica: int, step: int) -> list[int]:
        """Records a replica's gradient, and returns the replicas to release now.

        Args:
            replica: The index of the replica.
            step: The step from whose variables the gradient was computed.
        """
        if step != self.step:
            return [replica]
        self._waiting.add(replica)
        return []

    def leave(self, replica: int) -> None:
        """Records that a replica was restarted and is no longer waiting."""
        self._waiting.discard(replica)

    def advance(self, step: int) -> list[int]:
        """Begins another step, and returns the replicas to release into it."""
        released = sorted(self._waiting)
        self._waiting.clear()
        self.step = step
        return released
