"""Tasks of the simulated system, and queues between them."""

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any

from tfdist.research.simulation.simulator import Event, Simulator

Steps = Generator[Event, Any, Any]


class Process(Event):
    """Runs a generator; happens when the generator returns, with its result.

    The generator yields an event to wait for it, and receives the event's value.

    >>> simulator = Simulator()
    >>> def task():
    ...     yield sleep(simulator, 3.0)
    ...     return simulator.now
    >>> process = Process(simulator, task())
    >>> simulator.run()
    >>> process.value
    3.0
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
    """Returns the event that happens after some seconds."""
    event = Event()
    simulator.after(seconds, event.happen)
    return event


class Store:
    """Items that tasks wait for, in the order of their requests.

    With equal items it limits how many tasks do something at the same time.

    >>> store = Store()
    >>> first, second = store.take(), store.take()
    >>> store.put("a")
    >>> first.value, second.has_happened
    ('a', False)
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = deque(items)
        self._waiting: deque[Event] = deque()

    def put(self, item: Any = None) -> None:
        """Adds an item, and gives it to the task that has waited longest."""
        if self._waiting:
            self._waiting.popleft().happen(item)
        else:
            self._items.append(item)

    def take(self) -> Event:
        """Returns the event whose value is the next item."""
        event = Event()
        if self._items:
            event.happen(self._items.popleft())
        else:
            self._waiting.append(event)
        return event

    def __len__(self) -> int:
        return len(self._items)
