"""A task of the simulated system: a generator that waits for events. Pure."""

from collections.abc import Generator
from typing import Any

from tfdist.simulation.event import Event
from tfdist.simulation.simulator import Simulator

Steps = Generator[Event, Any, Any]


class Process(Event):
    """Runs a generator; happens when that returns, with what it returns.

    The generator yields an event to wait for it, and receives the event's value.

    >>> simulator = Simulator()
    >>> def task():
    ...     yield sleep(simulator, 3.0)
    ...     return simulator.now
    >>> process = Process(simulator, task())
    >>> simulator.run()
    >>> process.value
    3.0

    Args:
        simulator: The clock.
        steps: The generator.
    """

    def __init__(self, simulator: Simulator, steps: Steps) -> None:
        super().__init__()
        self._simulator = simulator
        self._steps = steps
        simulator.after(0.0, lambda: self._continue(None))

    def _continue(self, value: Any) -> None:
        # A loop, not recursion: a generator may wait for many events of the past in a row.
        while True:
            try:
                event = self._steps.send(value)
            except StopIteration as end:
                self.happen(end.value)
                return
            if not event.has_happened:
                event.then(self._continue)
                return
            value = event.value


def sleep(simulator: Simulator, seconds: float) -> Event:
    """Returns the event that happens after some seconds.

    Raises:
        ValueError: If the time is negative or not a number.
    """
    event = Event()
    simulator.after(seconds, event.happen)
    return event
