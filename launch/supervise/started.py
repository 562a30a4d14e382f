"""A task's process as the supervisor sees it, wherever it runs."""

import os
from dataclasses import dataclass
from typing import Protocol

from launch.supervise.listeners import process_listens
from launch.supervise.processes import Exit
from tf_config.contract import Report


class Started(Protocol):
    """A process that a `Starter` has started: a child of the supervisor stands for it."""

    @property
    def pid(self) -> int:
        """The process id of the child."""
        ...

    def signal(self, signum: int) -> None:
        """Sends a signal to the task."""
        ...

    def let_go(self) -> None:
        """Ends the child, whether or not the task has ended with it."""
        ...

    def listens(self, port: int) -> bool:
        """Returns whether the task accepts connections on the port."""
        ...

    def hear(self, line: str) -> Report | str | None:
        """Takes a line of the reports; returns a report, or text that is for the log."""
        ...

    def exit(self, exit: Exit) -> Exit:
        """Returns how the task ended, given how the child did."""
        ...

    def close(self) -> None:
        """Closes its files; the child has ended."""
        ...


@dataclass(frozen=True)
class LocalProcess:
    """A task that is a child of the supervisor.

    Args:
        pid: Its process id.
    """

    pid: int

    def signal(self, signum: int) -> None:
        """Sends a signal to the task."""
        os.kill(self.pid, signum)

    def let_go(self) -> None:
        """Does nothing: a process that SIGKILL has not ended cannot be ended."""

    def listens(self, port: int) -> bool:
        """Returns whether the task accepts connections on the port."""
        return process_listens(self.pid, port)

    def hear(self, line: str) -> Report | str | None:
        """Takes a line of the reports."""
        return Report.from_line(line)

    def exit(self, exit: Exit) -> Exit:
        """Returns how the task ended."""
        return exit

    def close(self) -> None:
        """Does nothing: it has no files."""
