"""The terminal that all tasks share, with one prefix and one colour per task."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERASE_LINE = "\r\x1b[K"
_ERASE_LINE_ABOVE = "\x1b[A" + _ERASE_LINE
_SECONDS_BETWEEN_PARTIALS = 5.0
_SECONDS_BETWEEN_STATUSES = 60.0


class Console:
    """Writes each task's lines with its prefix, and the launcher's notices.

    One line may be open, that is, not finished yet, such as a progress bar. On a terminal
    it is redrawn in place, below the other tasks' lines. Elsewhere it is written when
    it is finished, and every 5 seconds until then. The status is a line of the launcher,
    below everything on a terminal, and written every minute elsewhere.

    Args:
        names: The names of the tasks.
        stream: The stream of task output; None hides it.
        notices: The stream of notices; None hides them.
        environ: NO_COLOR switches colours off (https://no-color.org).
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        names: Sequence[str],
        stream: TextIO | None,
        notices: TextIO | None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._notices = notices
        self._live = stream is not None and stream.isatty()
        self._coloured = self._live and not environ.get("NO_COLOR")
        self._clock = clock
        self._names = list(names)
        self._width = max(map(len, [*names, "launch"])) + 2
        self._open: tuple[str, str] | None = None
        self._open_shown = ("", 0.0)
        self._status = ""
        self._status_shown = clock()
        self._drawn = 0

    def line(self, name: str, text: str) -> None:
        """Shows a finished line of a task."""
        if self._open and self._open[0] == name:
            self._open = None
        self._erase()
        self._write(f"{self._prefix(name)}{text}\n")
        self._redraw()

    def partial(self, name: str, text: str) -> None:
        """Shows the unfinished line of a task, or removes it if `text` is ''."""
        if text:
            if self._open is None:
                self._open_shown = ("", self._clock())
            self._open = (name, text)
        elif self._open and self._open[0] == name:
            self._erase()
            self._open = None
        self._redraw()

    def notice(self, text: str) -> None:
        """Shows a message of the launcher."""
        self._erase()
        for line in text.splitlines():
            if self._notices is not None:
                _write(self._notices, f"{self._prefix('launch')}{line}\n")
        self._redraw()

    def status(self, text: str) -> None:
        """Shows how the job stands, in place of what it showed before; '' is nothing."""
        if self._live:
            self._erase()
            self._status = text
            self._redraw()
        elif text and self._clock() - self._status_shown >= _SECONDS_BETWEEN_STATUSES:
            self._status_shown = self._clock()
            self.notice(text)

    def mute(self) -> None:
        """Hides everything from now on."""
        self._stream = self._notices = None

    def tick(self) -> None:
        """Shows the open line if it has waited long enough and cannot be redrawn."""
        if self._live or self._open is None:
            return
        shown, since = self._open_shown
        name, text = self._open
        if text != shown and self._clock() - since >= _SECONDS_BETWEEN_PARTIALS:
            self._write(f"{self._prefix(name)}{text}\n")
            self._open_shown = (text, self._clock())

    @property
    def waiting(self) -> bool:
        """True if `tick` must be called soon."""
        return self._open is not None and not self._live

    def _erase(self) -> None:
        """Erases the lines at the end that are redrawn in place."""
        if self._drawn:
            self._write(_ERASE_LINE + _ERASE_LINE_ABOVE * (self._drawn - 1))
            self._drawn = 0

    def _redraw(self) -> None:
        if not self._live:
            return
        self._erase()
        status = ("launch", self._status) if self._status else None
        shown = [each for each in (self._open, status) if each]
        columns = shutil.get_terminal_size().columns - self._width - 2
        lines = [f"{self._prefix(name)}{_fit(text, columns)}" for name, text in shown]
        if lines:
            self._write("\n".join(lines))
        self._drawn = len(lines)

    def _prefix(self, name: str) -> str:
        label = f"[{name}]".ljust(self._width)
        if self._coloured and name in self._names:
            colour = _COLOURS[self._names.index(name) % len(_COLOURS)]
            label = f"\x1b[{colour}m{label}\x1b[0m"
        return f"{label} "

    def _write(self, text: str) -> None:
        if self._stream is not None and not _write(self._stream, text):
            self._stream = None


def _fit(text: str, columns: int) -> str:
    # The escape that erases a line erases one row; a line that wraps has several.
    plain = _ESCAPES.sub("", text)
    return text if len(plain) <= columns else plain[: max(columns, 0)]


def _write(stream: TextIO, text: str) -> bool:
    """Writes; returns False if the reader is gone. The job outlives its viewer."""
    encoding = stream.encoding or "utf-8"
    with contextlib.suppress(OSError, ValueError):
        # A task may print what this terminal's encoding does not have.
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
        return True
    return False
