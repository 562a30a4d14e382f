"""A queue between tasks: what is put in is taken out in order. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from tfdist.simulation.event import Event


class Store:
    """Items that tasks wait for, in the order of their requests.

    With equal items it limits how many tasks do something at the same time.

    >>> store = Store()
    >>> first, second = store.take(), store.take()
    >>> store.put("a")
    >>> first.value, second.has_happened
    ('a', False)

    Args:
        items: What is in it at the beginning.
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
