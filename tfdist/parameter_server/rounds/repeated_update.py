"""Runs the update of a round again and again."""

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tfdist import _tf

_POLL_SECONDS = 0.02


class RepeatedUpdate:
    """Calls a function over and over, in a thread of the chief, until it is closed.

    Most of the time, the function waits on the ps for the gradients of a round.

    Args:
        function: A `ConcreteFunction` without arguments.
        on_error: Is called in that thread if the function fails.
    """

    def __init__(self, function: Any, on_error: Callable[[], None]) -> None:
        self._state = _State()
        cancellation = _tf.new_cancellation()
        cancelable = _tf.cancelable(function, cancellation)
        thread = threading.Thread(
            target=_run,
            args=(self._state, cancelable, on_error),
            name="updates",
            daemon=True,
        )
        # At exit too: a thread must not wait within TensorFlow when that is taken down.
        self.close = weakref.finalize(self, _close, self._state, cancellation, thread)
        thread.start()

    def wait(
        self,
        calls: Callable[[], int],
        waiting: AbstractContextManager[Any],
        check: Callable[[], None],
    ) -> None:
        """Waits until it has been called often enough.

        Args:
            calls: How often.
            waiting: Is entered while it waits.
            check: Is called often, and may raise an error.

        Raises:
            tf.errors.OpError: The error of the function.
        """
        state = self._state
        self.raise_error()
        with waiting:
            while state.calls < calls():
                check()
                with state.changed:
                    if state.error is None:
                        state.changed.wait(_POLL_SECONDS)
                self.raise_error()

    @property
    def calls(self) -> int:
        """How often it has been called."""
        return self._state.calls

    def raise_error(self) -> None:
        """Raises the error of the function, if it has failed."""
        if self._state.error is not None:
            raise self._state.error


class _State:
    """What the thread and others share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls = 0
        self.is_closed = False
        self.error: Exception | None = None


def _run(
    state: _State, function: Callable[[], Any], on_error: Callable[[], None]
) -> None:
    # Not a method: the thread must not keep alive what ends it.
    with _tf.executor_scope(_tf.new_executor()):
        while not state.is_closed:
            try:
                function()
            except Exception as error:
                if not state.is_closed:
                    state.error = error
                    on_error()
                return
            with state.changed:
                state.calls += 1
                state.changed.notify_all()


_CLOSE_SECONDS = 1.0


def _close(state: _State, cancellation: Any, thread: threading.Thread) -> None:
    state.is_closed = True
    cancellation.start_cancel()
    if thread is not threading.current_thread():
        thread.join(_CLOSE_SECONDS)
