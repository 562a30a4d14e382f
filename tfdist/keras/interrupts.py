"""Interrupts (Ctrl-C) that a library has caught together with all other errors.

Keras converts logs for callbacks within a bare `except`, and Python only prints an error of
`__del__`. Training would continue after either.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tfdist._support.authors import Author, author
from tfdist._support.types import Stride

_pending = threading.Event()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Notes interrupts for `steps`, unless the program has a handler of its own."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _pending.clear()
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def steps(strides: Iterator[Stride]) -> Iterator[Any]:
    """Passes on steps until one of them has lost an interrupt."""
    for stride in strides:
        if _pending.is_set():
            _pending.clear()
            raise KeyboardInterrupt
        yield stride


def _note(signum: int, frame: FrameType | None) -> None:
    # What the program catches in lines of its own, it means to catch.
    if frame is None or author(frame.f_code.co_filename) is not Author.PROGRAM:
        _pending.set()
    signal.default_int_handler(signum, frame)
