"""One exchange at a time, in the order in which this worker began them.

All workers exchange in the same order. So what the main thread exchanges, such as the
logs of an epoch, waits for the mix that began before it.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound="InTurn")


class InTurn:
    """The base of a class whose methods marked `in_turn` exclude each other.

    `turn` is held while one of them runs.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()

    def in_background(self, function: Callable[[], _T]) -> "Future[_T]":
        """Calls a function in a thread; its turn begins before this returns."""
        result: Future[_T] = Future()
        has_turn = threading.Event()

        def run() -> None:
            with self.turn:
                has_turn.set()
                try:
                    result.set_result(function())
                except BaseException as error:
                    result.set_exception(error)

        # A daemon: a peer that does not answer must not keep this process from exiting.
        threading.Thread(target=run, name="mix", daemon=True).start()
        has_turn.wait()
        return result


def in_turn(
    method: Callable[Concatenate[_S, _P], _T],
) -> Callable[Concatenate[_S, _P], _T]:
    """Makes a method wait for those that began before it in other threads."""

    @functools.wraps(method)
    def waits(self: _S, *args: Any, **kwargs: Any) -> _T:
        with self.turn:
            return method(self, *args, **kwargs)

    return waits
