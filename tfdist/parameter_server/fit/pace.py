"""Pace at which steps finish, and the number of steps per message for it. Pure.

A message costs the chief more than a millisecond, whether it asks for one step or for
ten.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MESSAGES_PER_WORKER = 4
"""The number of messages in flight per worker.

A worker has one to run and a few in its queue, so that it never waits for the chief.
TensorFlow's own queue has room for 256k, and would keep the batches of all in memory.
"""

# Rounded up to whole exchanges. Few, since each takes a trace.
_SIZES = (5, 10, 20, 100)

# The seconds of a message: of several exchanges, and of one. A longer one would delay a
# progress bar and the end of an epoch noticeably; a shorter one costs more than it has
# to. In between, the size stays as it is. Who asks for fewer exchanges waits longer for
# them, but a checkpoint waits ten seconds for the steps in flight, and no longer.
_SHORT = (0.15, 2.0)
_LONG = (0.4, 5.0)
_WINDOW_SECONDS = 0.2
# A size above ten costs a trace of a second or more, and saves less than the one before.
# So it has to wait until that one has been used so often.
_CHEAP_SIZE = 10
_STRIDES_BEFORE_LARGER = 200


def sizes_of(exchange: int) -> tuple[int, ...]:
    """Returns the numbers of steps to choose from: few, since each takes a trace.

    Args:
        exchange: The most steps between two exchanges. All larger numbers are multiples
            of it, and the smaller ones are for steps so slow that as many would take
            too long.
    """
    larger = {-(-size // exchange) * exchange for size in _SIZES}
    smaller = {exchange >> halved for halved in range(exchange.bit_length())}
    return tuple(sorted(larger | smaller))


@dataclass(eq=False)
class Pace:
    """Chooses the number of steps in a message by how fast steps finish.

    Args:
        workers: The number of workers.
        exchange: The most steps between two exchanges: the number that it begins with.
        clock: Returns the time in seconds.

    Attributes:
        chosen: The numbers that it has chosen so far.
    """

    workers: int
    exchange: int = 1
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._sizes = sizes_of(self.exchange)
        self._size = self._sizes.index(self.exchange)
        self.chosen = {self.exchange}
        self._enlarge_at = 0
        self._held_until: int | None = None
        self.start(0)

    def start(self, finished: int) -> None:
        """Restarts the measurement, as between two epochs."""
        self._since, self._finished_then = self.clock(), finished

    def steps(self, finished: int) -> int:
        """Returns the number of steps for the next message.

        Args:
            finished: How many steps have finished since the strategy was constructed.
        """
        if self._held_until is None:
            self._hold(finished)
        elapsed, done = self.clock() - self._since, finished - self._finished_then
        if elapsed >= _WINDOW_SECONDS and done:
            self.start(finished)
            self._change(elapsed * self.workers / done, finished)
        return self._sizes[self._size]

    def _change(self, seconds: float, finished: int) -> None:
        """Changes to the size that suits the seconds of a step."""
        larger = self._larger(seconds, finished)
        if larger > self._size:
            self._size = larger
            strides = _STRIDES_BEFORE_LARGER * self._sizes[larger]
            self._enlarge_at = finished + strides
        elif self._held_until is not None and finished >= self._held_until:
            while self._size and self._takes(self._size, seconds, _LONG):
                self._size -= 1
        if self._sizes[self._size] not in self.chosen:
            self.chosen.add(self._sizes[self._size])
            self._hold(finished)

    def _hold(self, finished: int) -> None:
        """Waits with smaller sizes until each worker has had a message of this one.

        The first includes a trace, and takes long, regardless of the size.
        """
        in_flight = (MESSAGES_PER_WORKER + 1) * max(self.chosen)
        self._held_until = finished + self.workers * in_flight

    def _takes(self, size: int, seconds: float, limits: tuple[float, float]) -> bool:
        """Returns True if a message of a size takes longer than a limit."""
        steps = self._sizes[size]
        # A message of one exchange has the second limit.
        return steps * seconds > limits[steps <= self.exchange]

    def _larger(self, seconds: float, finished: int) -> int:
        """Returns the position of the size to change to, if it is larger."""
        fast = range(len(self._sizes))
        short = [i for i in fast if not self._takes(i, seconds, _SHORT)]
        most = max(_CHEAP_SIZE, self.exchange)
        cheap = [i for i in short if self._sizes[i] <= most]
        if len(cheap) - 1 > self._size:
            return len(cheap) - 1
        following = self._size + 1
        pays = finished >= self._enlarge_at
        return following if pays and len(short) > following else self._size


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
