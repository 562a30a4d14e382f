"""The clock of a simulation, what is to happen when, and those who wait for it."""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any


class Timer:
    """One action that is to happen at a certain time, in simulated seconds."""

    def __init__(self, time: float, action: Callable[[], None]) -> None:
        self.time = time
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        """Takes the action back; without effect once it has happened."""
        self.is_cancelled = True


class Simulator:
    """Runs actions in the order of their times.

    Actions of the same time run in the order in which they were requested, so that
    equal inputs give equal runs.

    >>> simulator, seen = Simulator(), []
    >>> _ = simulator.after(2.0, lambda: seen.append(simulator.now))
    >>> _ = simulator.after(1.0, lambda: seen.append(simulator.now))
    >>> simulator.run()
    >>> seen
    [1.0, 2.0]

    Attributes:
        now: The simulated time in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._is_stopped = False
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        """Requests an action after a delay of at least 0 seconds."""
        if not delay >= 0:
            raise ValueError(f"a delay must be at least 0 seconds; received {delay!r}")
        timer = Timer(self.now + delay, action)
        heapq.heappush(self._timers, (timer.time, next(self._order), timer))
        return timer

    def stop(self) -> None:
        """Ends `run` after the present action."""
        self._is_stopped = True

    def run(self, until: float = math.inf) -> None:
        """Runs actions until none is left, or the next one is due after `until`.

        If that is finite, the clock shows it at the end, unless `stop` was called.
        """
        self._is_stopped = False
        while self._timers and self._timers[0][0] <= until and not self._is_stopped:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self.now = timer.time
                timer.action()
        if math.isfinite(until) and not self._is_stopped:
            self.now = max(self.now, until)


class Event:
    """Something that happens once, such as the end of a transfer, and its value."""

    def __init__(self) -> None:
        self.has_happened = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def then(self, action: Callable[[Any], None]) -> None:
        """Calls an action with the event's value when it happens, or now if it has."""
        if self.has_happened:
            action(self.value)
        else:
            self._waiting.append(action)

    def happen(self, value: Any = None) -> None:
        """Makes it happen; raises RuntimeError if it has happened before."""
        if self.has_happened:
            raise RuntimeError(
                "an event happens once; create another for the next time"
            )
        self.has_happened, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action(value)
