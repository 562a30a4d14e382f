"""How long training steps take. Pure."""

import time
from collections.abc import Callable, Iterator
from typing import Any


class StepTime:
    """Measures the steps of epochs, from the first that finishes: it includes a trace.

    Args:
        finished: Returns how many steps have finished.
        clock: Returns the time in seconds.

    Attributes:
        seconds: The time between two steps that finished, in the last epoch that had
            some; None before.
    """

    def __init__(
        self, finished: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._finished = finished
        self._clock = clock
        self.seconds: float | None = None

    def during(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yields the steps of an epoch, and measures them.

        >>> finished, now = iter([0, 0, 2, 8]), iter([5.0, 8.0])
        >>> time = StepTime(lambda: next(finished), lambda: next(now))
        >>> list(time.during(iter("ab"))), time.seconds
        (['a', 'b'], 0.5)
        """
        before = self._finished()
        began: tuple[int, float] | None = None
        for each in steps:
            if began is None and (finished := self._finished()) > before:
                began = finished, self._clock()
            yield each
        if began is not None and (done := self._finished() - began[0]):
            self.seconds = (self._clock() - began[1]) / done
