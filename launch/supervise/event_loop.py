"""The supervisor's only loop: it waits for events, and runs checks in between."""

import selectors
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Check(Protocol):
    """Something to look at after every event, and at least at an interval."""

    @property
    def interval(self) -> float:
        """The longest time between two calls of `check`, in seconds; may be inf."""

    def check(self) -> None:
        """Polls once, and acts on the result."""


class EventLoop:
    """Calls back when a file can be read, in the thread that waits."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._checks: list[Check] = []

    def add_checks(self, checks: Iterable[Check]) -> None:
        """Adds checks, which run in this order."""
        self._checks += checks

    def register(
        self, file: "FileDescriptorLike", callback: Callable[[], object]
    ) -> None:
        """Calls back whenever the file can be read without waiting."""
        self._selector.register(file, selectors.EVENT_READ, callback)

    def unregister(self, file: "FileDescriptorLike") -> None:
        """Ignores the file from now on."""
        self._selector.unregister(file)

    def has(self, file: "FileDescriptorLike") -> bool:
        """Returns True if the file is registered."""
        return file in self._selector.get_map()

    def wait(self, done: Callable[[], bool], timeout: float = float("inf")) -> None:
        """Handles events until `done`, or for `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not done() and (left := deadline - time.monotonic()) > 0:
            self.run_once(left)

    def run_once(self, timeout: float) -> None:
        """Handles the events that come within `timeout` seconds, then runs the checks."""
        timeout = min([timeout, *(check.interval for check in self._checks)])
        for key, _ in self._selector.select(timeout):
            key.data()
        for check in self._checks:
            check.check()
