"""Ends a process that waits for a lost peer where nothing can interrupt it."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from tf_config.contract import EXIT_STALLED
from tfdist.liveness.watchdog import end_process


class LastResort:
    """Ends the process if a call goes on although a peer that it needs is lost.

    Most waits of TensorFlow fail when a peer ends. Some do not: those for a process that
    is stopped, and those for what was sent to a peer before a step.

    Args:
        seconds: How long the call has to fail by itself.
        end: Ends the process with a status.
    """

    def __init__(
        self, seconds: float = 15.0, end: Callable[[int], None] = os._exit
    ) -> None:
        self._seconds = seconds
        self._end = end
        self._depth = 0
        self._calls = 0
        self._is_called = threading.Event()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call, of the main thread, that needs all peers; it may hold another."""
        self._calls += not self._depth
        self._depth += 1
        self._is_called.set()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._is_called.clear()

    def lost(self, text: str, is_back: Callable[[], bool]) -> bool:
        """Waits for a call that does not end, and ends the process.

        A peer may be stopped, and go on, while nobody needs it.

        Args:
            text: What is to be said then.
            is_back: Whether the peer answers again.

        Returns:
            True once the peer is back.
        """
        while True:
            self._is_called.wait()
            call = self._calls
            time.sleep(self._seconds)
            if is_back():
                return True
            if self._is_called.is_set() and self._calls == call:
                end_process(text, EXIT_STALLED, self._end)
                return False
