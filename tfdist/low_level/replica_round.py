"""Whose gradients make a step: a pure decision."""


class Round:
    """The replicas that have brought a gradient of the current step, and wait.

    A replica waits from its arrival until it is released, so it brings at most one
    gradient a step.

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
        """Whether enough replicas have brought a gradient of this step."""
        return len(self._waiting) >= self._enough

    def arrive(self, replica: int, step: int) -> list[int]:
        """Takes note of a replica's gradient, and returns whom to release at once.

        Args:
            replica: Its index.
            step: The step whose variables the gradient was computed with.
        """
        if step != self.step:
            return [replica]
        self._waiting.add(replica)
        return []

    def leave(self, replica: int) -> None:
        """Takes note that a replica was started again, and waits for nothing."""
        self._waiting.discard(replica)

    def advance(self, step: int) -> list[int]:
        """Begins another step, and returns whom to release for it."""
        released = sorted(self._waiting)
        self._waiting.clear()
        self.step = step
        return released
