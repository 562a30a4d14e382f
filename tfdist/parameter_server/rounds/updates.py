"""Runs the updates that end rounds, while the steps of later rounds are sent."""

import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist import _tf

_POLL_SECONDS = 0.05


class Updates:
    """Calls functions one after the other, in a thread of the chief.

    The chief sends what it has scheduled without waiting: while one update waits for its
    gradients, the next is known already.

    Attributes:
        rounds: How many rounds have ended.
    """

    def __init__(self) -> None:
        self._functions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._cancellation = _tf.new_cancellation()
        weakref.finalize(self, self._functions.put, None).atexit = False
        self._changed = threading.Condition()
        self._pending = 0
        self.rounds = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def submit(self, function: Any, count: int, rounds: int) -> None:
        """Schedules a function of a number of gradients, which ends so many rounds."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._functions,), name="updates", daemon=True
            )
            self._thread.start()
        with self._changed:
            self._pending += 1
        function = _tf.cancelable(function, self._cancellation)
        self._functions.put((self, function, count, rounds))

    def wait(
        self, waiting: AbstractContextManager[Any], check: Callable[[], None]
    ) -> None:
        """Waits until all functions have finished.

        Args:
            waiting: Is entered while it waits.
            check: Is called often, and may raise an error.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        with waiting:
            while self._pending and self._error is None:
                # Not under the lock: steps may need the updates that are scheduled.
                check()
                with self._changed:
                    if self._pending and self._error is None:
                        self._changed.wait(_POLL_SECONDS)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the thread, and what it waits for."""
        self._functions.put(None)
        self._cancellation.start_cancel()

    def run(self, function: Any, count: int, rounds: int) -> None:
        """Calls a function, unless an earlier one has failed."""
        if self._error is None:
            try:
                function(tf.constant(count))
                self.rounds += rounds
            except Exception as error:
                self._error = error
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()


def _run(functions: "queue.SimpleQueue[Any]") -> None:
    # Not a method: the thread must not keep alive what ends it.
    with _tf.executor_scope(_tf.new_executor()):
        while (scheduled := functions.get()) is not None:
            updates, function, count, rounds = scheduled
            updates.run(function, count, rounds)
            del scheduled, updates, function
