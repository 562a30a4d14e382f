"""Number of steps that the workers run in one call, the same on all of them.

A call costs each worker a millisecond or more, and a sum of the metrics over all of them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

LONGEST_CALL = 0.15
"""The most seconds of a call: a longer one would delay a progress bar noticeably."""

MOST_STEPS = 100
"""The most steps of a call: more save nothing that could be measured."""

# What a decision is made from: so many steps, after a call that may have traced.
_MEASURED_STEPS = 10
_MICROSECOND = 1e-6


@dataclass(eq=False)
class CommonStride:
    """Chooses how many steps to run in the next call.

    All workers ask at the same steps, and take the pace of the slowest one, which the
    others wait for.

    Cost: two messages of 8 bytes per worker in a `fit`, and one more per epoch.

    Args:
        slowest: Returns the largest of all workers' numbers; all call it together.
        clock: Returns the time in seconds.
    """

    slowest: Callable[[int], int]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._size = 1
        self._calls = 0
        self._is_settled = False

    def start(self) -> None:
        """Measures again, since an epoch begins."""
        self._calls = 0
        self._is_settled = False

    def steps(self) -> int:
        """Returns the number of steps for the next call, at least 1."""
        if not self._is_settled:
            if self._calls == 1:
                self._since = self.clock()
            elif (self._calls - 1) * self._size >= _MEASURED_STEPS:
                self._decide((self._calls - 1) * self._size)
        self._calls += 1
        return self._size

    def _decide(self, steps: int) -> None:
        """Takes the size that suits the slowest worker."""
        mine = (self.clock() - self._since) / steps
        seconds = max(self.slowest(int(mine / _MICROSECOND)), 1) * _MICROSECOND
        before, self._size = self._size, size_for(seconds)
        # Single steps look slower than they are: each of them waits for its call.
        self._is_settled = self._size <= 2 * before
        self._calls = 0


def size_for(seconds: float) -> int:
    """Returns the number of steps of a call, given the seconds of one."""
    return max(1, min(int(LONGEST_CALL / seconds + 1e-9), MOST_STEPS))
