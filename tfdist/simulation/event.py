"""Something that happens once, and those who wait for it."""

from collections.abc import Callable
from typing import Any


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


def all_of(events: list[Event]) -> Event:
    """Returns the event that happens with the last of several."""
    whole, missing = Event(), len(events)

    def one_less(_: Any) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            whole.happen()

    if not events:
        whole.happen()
    for event in events:
        event.then(one_less)
    return whole
