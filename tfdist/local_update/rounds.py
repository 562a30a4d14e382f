"""When models are mixed: after every H local steps, and at the end. Pure."""


class Rounds:
    """Counts the local steps since the last mix.

    Args:
        local_steps: After how many steps to mix: H.

    Attributes:
        mixed: How many times models were mixed.

    >>> rounds = Rounds(2)
    >>> [rounds.step() for _ in range(5)]
    [False, True, True, True, True]
    >>> rounds.mix()
    >>> rounds.is_open, rounds.step(), rounds.is_open
    (False, False, True)
    """

    def __init__(self, local_steps: int) -> None:
        self._local_steps = local_steps
        self._since = 0
        self.mixed = 0

    @property
    def is_open(self) -> bool:
        """Whether there were steps since the last mix."""
        return self._since > 0

    def step(self) -> bool:
        """Counts a step, and returns whether models are to be mixed now."""
        self._since += 1
        return self._since >= self._local_steps

    def mix(self) -> None:
        """Notes that models were mixed."""
        self._since = 0
        self.mixed += 1
