"""One task as a process: its output, its log file and its reports."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from signal import SIGKILL

from launch.console.lines import LineSplitter, tail
from launch.job.plan import TaskPlan
from launch.supervise import processes
from launch.supervise.starter import Starter
from tf_config.contract import Report

_TAIL_LINES = 15


class TaskProcess:
    """A task that was started.

    Its standard output and error arrive as one stream: the log file gets the bytes
    unchanged, `on_line` the lines.

    Args:
        plan: The task's plan.
        log_path: The log file.
        on_line: Called with each line.
        starter: Starts the program.
        inherit_stdin: Whether the task reads this process's standard input.
        before: The previous process of the same task, which has ended; its log is
            continued.

    Attributes:
        reports: The file descriptor to wait for reports on.
        told_to_end: Whether the launcher has told the task to end.
        exit: How it ended; None until it is reaped.
        was_killed: Whether the launcher has sent SIGKILL.
        restarts: How many processes the task had before.
        deaths: The times of deaths for lack of memory, in seconds on a steady clock.
        wall: How long it ran, in seconds; 0 until it is reaped.

    Raises:
        OSError: If the program cannot be started, or the log file cannot be written.
    """

    def __init__(
        self,
        plan: TaskPlan,
        log_path: str,
        on_line: Callable[[str], None],
        *,
        starter: Starter,
        inherit_stdin: bool = False,
        before: "TaskProcess | None" = None,
    ) -> None:
        self.plan = plan
        self.log_path = log_path
        self.told_to_end = self.was_killed = False
        self.exit: processes.Exit | None = None
        self._on_line = on_line
        self._lines = LineSplitter()
        self._report_lines = LineSplitter()
        mode = "wb" if before is None else "ab"
        self._log = open(log_path, mode, buffering=0)  # noqa: SIM115
        self._output, write_end = _pipe()
        self.reports, report_end = _pipe()
        try:
            self._process = starter.start(
                plan,
                output=write_end,
                reports=report_end,
                inherit_stdin=inherit_stdin,
            )
        except OSError:
            self._close_files()
            raise
        finally:
            # As long as this process holds a write end, the pipe does not end.
            os.close(write_end)
            os.close(report_end)
        self._started = time.monotonic()
        self.wall = 0.0
        self.restarts: int = 0 if before is None else before.restarts + 1
        self.deaths: tuple[float, ...] = () if before is None else before.deaths
        self._before = 0.0 if before is None else before.cpu

    @property
    def cpu(self) -> float:
        """The CPU time of the task's processes that have ended, in seconds."""
        return self._before + (self.exit.cpu if self.exit else 0.0)

    @property
    def pid(self) -> int:
        """The process id; once the task is reaped, the kernel may reuse it."""
        return self._process.pid

    @property
    def listens(self) -> bool:
        """True if the task accepts connections on its port."""
        return self._process.listens(self.plan.port)

    @property
    def was_reached(self) -> bool:
        """True if the host that it runs on has answered."""
        return getattr(self._process, "was_reached", True)

    @property
    def alive(self) -> bool:
        """True if the task has not been reaped."""
        return self.exit is None

    @property
    def partial(self) -> str:
        """The unfinished line of output, or ''."""
        return self._lines.partial

    def fileno(self) -> int:
        """The file descriptor to wait for output on."""
        return self._output

    def read(self) -> bool:
        """Reads the available output; returns False at its end."""
        is_open = True
        for data, lines in self._lines.read(self._output):
            # A full disk truncates the log; it must not end the training.
            with contextlib.suppress(OSError):
                self._log.write(data)
            for line in lines:
                self._on_line(line)
            is_open = bool(data)
        return is_open

    def read_reports(self) -> tuple[list[Report], bool]:
        """Reads the available reports; returns them, and False at their end."""
        reports: list[Report] = []
        is_open = True
        for data, lines in self._report_lines.read(self.reports):
            for line in lines:
                heard = self._process.hear(line)
                if isinstance(heard, Report):
                    reports.append(heard)
                elif heard:
                    with contextlib.suppress(OSError):
                        text = heard.encode(errors="surrogateescape")
                        self._log.write(text + b"\n")
                    self._on_line(heard)
            is_open = bool(data)
        return reports, is_open

    def signal(self, signum: int) -> None:
        """Sends a signal to the task if it is alive."""
        if self.alive:
            self.was_killed |= signum == SIGKILL
            self._process.signal(signum)

    def let_go(self) -> None:
        """Gives up on a task that nothing has ended."""
        if self.alive:
            self._process.let_go()

    def ended(self, exit: processes.Exit) -> None:
        """Records that the task was reaped."""
        self.exit = self._process.exit(exit)
        now = time.monotonic()
        self.wall = now - self._started
        if self.exit.why:
            self.deaths += (now,)

    def close(self) -> None:
        """Closes the pipes and the log file."""
        self._process.close()
        self._close_files()

    def _close_files(self) -> None:
        os.close(self._output)
        os.close(self.reports)
        self._log.close()

    def tail(self, hidden: Callable[[str], bool] = lambda line: False) -> str:
        """Returns the last lines of the log, indented, without hidden ones."""
        return tail(self.log_path, _TAIL_LINES, hidden)


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    # A child of the task may hold the pipe open without ever writing to it.
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_NONBLOCK)
    return read_end, write_end
