"""Requests to end the job: signals, or the end of the process that started it."""

import signal
import socket
import time
from types import FrameType

from launch.supervise.event_loop import EventLoop

# An engine may send one signal to every process of a job, and the launcher forwards its.
_AT_ONCE = 0.3  # seconds


class KillNow(BaseException):
    """The user has lost patience: end every process without a grace period."""


class EndRequest:
    """Requests to end the job, and how.

    Attributes:
        signals: The signals received, in order.
    """

    def __init__(self, control: socket.socket, loop: EventLoop) -> None:
        self._control = control
        self._loop = loop
        self._abandoned = False
        self._may_raise = True
        self._since = 0.0
        self.signals: list[int] = []
        # The other end never writes: the socket becomes readable when it closes.
        loop.register(control, self._on_closed)

    def __bool__(self) -> bool:
        return bool(self.signals) or self._abandoned

    def listen(self) -> None:
        """Handles signals from now on: SIGHUP, or a second one, raises `KillNow`."""
        # A signal alone does not end the loop's wait: Python runs the handler, and then
        # waits for the rest of the time (PEP 475). The socket ends it.
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker  # Kept, or it would be closed with this function.
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._loop.register(woken, lambda: woken.recv(4096))
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, self._on_signal)

    def stop_raising(self) -> None:
        """Only records signals from now on: every process is about to be killed."""
        self._may_raise = False

    def _on_closed(self) -> None:
        self._loop.unregister(self._control)
        self._abandoned = True

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return  # It only has to wake the loop, which reaps.
        now = time.monotonic()
        is_copy = self.signals[:1] == [signum] and now - self._since < _AT_ONCE
        is_urgent = signum == signal.SIGHUP or (bool(self.signals) and not is_copy)
        if not self.signals:
            self._since = now
        self.signals.append(signum)
        # An exception, since the main thread may hang in a write to a stopped terminal.
        # Raised once only: a third signal must not interrupt the teardown.
        if is_urgent and self._may_raise:
            self._may_raise = False
            raise KillNow
