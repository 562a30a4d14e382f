"""Runs the updates that end rounds, while the steps of later rounds are sent."""

import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from tfdist import _tf

_POLL_SECONDS = 0.02
_CLOSE_SECONDS = 1.0


class _Update(NamedTuple):
    """A function that ends `rounds` rounds, and what is done if it fails."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    rounds: int
    is_repeated: bool
    on_error: Callable[[], None]


class Updates:
    """Calls functions one after the other, in a thread of the chief.

    The chief sends what it has scheduled without waiting: while one update waits on the ps
    for its gradients, the next is known already.
    """

    def __init__(self) -> None:
        self._state = _State()
        self._cancellation = _tf.new_cancellation()
        # At exit too: a thread must not wait within TensorFlow when that is taken down.
        self.close = weakref.finalize(self, _close, self._state, self._cancellation)

    @property
    def rounds(self) -> int:
        """The number of rounds that have ended."""
        return self._state.rounds

    def submit(self, function: Any, count: Any, rounds: int) -> None:
        """Schedules a function of a number of gradients, which ends `rounds` rounds."""
        self._schedule(function, (count,), rounds)

    def repeat(self, function: Any, on_error: Callable[[], None]) -> None:
        """Schedules a function again and again, which ends a round each time.

        Args:
            function: A `ConcreteFunction` without arguments.
            on_error: Is called in that thread if the function fails.
        """
        self._schedule(function, (), 1, True, on_error)

    def _schedule(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        rounds: int,
        is_repeated: bool = False,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        state = self._state
        function = _tf.cancelable(function, self._cancellation)
        state.updates.put(_Update(function, arguments, rounds, is_repeated, on_error))
        if state.thread is None:
            state.thread = threading.Thread(
                target=_run, args=(state,), name="updates", daemon=True
            )
            state.thread.start()

    def wait(
        self,
        rounds: Callable[[], int],
        waiting: AbstractContextManager[Any],
        check: Callable[[], None],
    ) -> None:
        """Waits until that many rounds have ended.

        Args:
            rounds: How many.
            waiting: Is entered while it waits.
            check: Is called often, and may raise an error.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        state = self._state
        self.raise_error()
        with waiting:
            while state.rounds < (wanted := rounds()):
                # Not under the lock: steps may need the updates that are scheduled.
                check()
                with state.changed:
                    if state.error is None and state.rounds < wanted:
                        state.changed.wait(_POLL_SECONDS)
                self.raise_error()

    def raise_error(self) -> None:
        """Raises the error of a function, if one has failed."""
        if self._state.error is not None:
            raise self._state.error


class _State:
    """The state that the thread shares with others."""

    def __init__(self) -> None:
        self.updates: queue.SimpleQueue[_Update | None] = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.rounds = 0
        self.is_closed = False
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None


def _run(state: _State) -> None:
    # Not a method: the thread must not keep alive what ends it.
    with _tf.executor_scope(_tf.new_executor()):
        while (update := state.updates.get()) is not None:
            _call(state, update)
            # Let the update's objects be freed while this waits for the next one.
            del update


def _call(state: _State, update: _Update) -> None:
    """Calls a function, unless an earlier one has failed."""
    if state.error is not None:
        return
    ended, error = 0, None
    try:
        update.function(*update.arguments)
        ended = update.rounds
    except Exception as raised:
        error = raised
    with state.changed:
        state.rounds += ended
        state.error = error
        state.changed.notify_all()
    if error is not None and not state.is_closed:
        update.on_error()
    elif error is None and update.is_repeated:
        state.updates.put(update)


def _close(state: _State, cancellation: Any) -> None:
    state.is_closed = True
    state.updates.put(None)
    cancellation.start_cancel()
    thread = state.thread
    # The garbage collector may run in that thread, which cannot join itself.
    if thread is not None and thread is not threading.current_thread():
        thread.join(_CLOSE_SECONDS)
