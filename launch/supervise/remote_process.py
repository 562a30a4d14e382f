"""A process on another host, by a connection to it that is a child of the supervisor."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping
from typing import Any

from launch.job.plan import Remote
from launch.remote import channel
from launch.supervise import processes
from launch.supervise.policy import LOST
from launch.supervise.processes import Exit
from tf_config.contract import Report

HEARTBEAT_INTERVAL = 5.0
LEASE = 30.0
"""Seconds between signs of life, and without one until a task is killed on its host."""

_F_SETPIPE_SZ, _PIPE_SIZE = 1031, 1 << 20  # bytes; the number is Linux's.


class RemoteProcess:
    """A process on another host, with the agent of `launch.remote` around it.

    `output` is the file of its standard output and error. `events` gets what the agent
    tells, and the messages of the connection's program.

    Attributes:
        was_reached: Whether the agent has answered.
    """

    def __init__(
        self,
        remote: Remote,
        python: str,
        request: Mapping[str, Any],
        *,
        output: int,
        events: int,
    ) -> None:
        self._exit: tuple[int, float, str] | None = None
        self._listens = False
        self.was_reached = False
        self._unsent = b""
        self._is_sending = False
        there, self._input = os.pipe()
        try:
            self.pid = processes.spawn(
                [*remote.connect, channel.command(channel.AGENT, python)],
                os.environ,
                stdin=there,
                output=output,
                errors=events,
            )
        except OSError:
            os.close(self._input)
            raise
        finally:
            os.close(there)
        # The whole request fits, so nothing waits until the connection stands.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._input, _F_SETPIPE_SZ, _PIPE_SIZE)
        os.set_blocking(self._input, False)
        self.send(channel.request(channel.AGENT, {**request, "lease": LEASE}))

    def signal(self, signum: int) -> None:
        """Sends a signal to the task, if the connection stands."""
        self.send(channel.order(signum))

    @property
    def is_closed(self) -> bool:
        """True if nothing can be sent any more."""
        return self._input < 0

    def beat(self) -> None:
        """Tells the agent that the launcher is alive; a signal handler may call it."""
        if not self._is_sending:
            self.send(channel.HEARTBEAT)

    def let_go(self) -> None:
        """Ends the connection; the agent ends the task as soon as it notices."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def listens(self, port: int) -> bool:
        """Returns True if the agent has seen the task listen."""
        return self._listens

    def hear(self, line: str) -> Report | str | None:
        """Takes a line of the agent or of the connection's program."""
        event = channel.event(line)
        if event is None:
            return line
        self.was_reached = True
        match event:
            case {"event": "listening"}:
                self._listens = True
            case {"event": "exit", "code": int(code), "cpu": float(cpu), **rest}:
                self._exit = code, cpu, str(rest.get("why", ""))
            case {"event": "report", "line": str(text)}:
                return Report.from_line(text)
        return None

    def exit(self, exit: Exit) -> Exit:
        """Returns how the task ended; `LOST` if its agent could not tell."""
        code, cpu, why = self._exit or (LOST, 0.0, "")
        return Exit(exit.pid, code, cpu, why=why)

    def close(self) -> None:
        """Closes the agent's input, which ends the task."""
        if not self.is_closed:
            # A sign of life may be due at any moment, even within this function.
            number, self._input = self._input, -1
            os.close(number)

    def send(self, data: bytes) -> None:
        """Sends a line to the agent, as `launch.remote.channel` makes it."""
        self._is_sending = True
        self._unsent += data
        # The connection may be slow, or gone; the rest goes with the next sign of life.
        with contextlib.suppress(OSError):
            while self._unsent and not self.is_closed:
                self._unsent = self._unsent[os.write(self._input, self._unsent) :]
        self._is_sending = False


class Heartbeat:
    """Sends signs of life, from the main thread.

    It uses a timer of the kernel's, not the event loop: the supervisor may hang in a
    write to a stopped terminal, and the tasks must survive that.
    """

    def __init__(self) -> None:
        self._processes: list[RemoteProcess] = []

    def add(self, process: RemoteProcess) -> None:
        """Sends signs of life to a process until it is closed."""
        if not self._processes:
            signal.signal(signal.SIGALRM, lambda *_: self._beat())
            signal.setitimer(signal.ITIMER_REAL, HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL)
        self._processes.append(process)

    def _beat(self) -> None:
        self._processes = [each for each in self._processes if not each.is_closed]
        for process in self._processes:
            process.beat()
