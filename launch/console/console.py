"""The terminal that all tasks share: one prefix and one colour a task."""

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERASE_LINE = "\r\x1b[K"
_SECONDS_BETWEEN_PARTIALS = 5.0


class Console:
    """Writes each task's lines with its prefix, and the launcher's own notices.

    One line may be open: a progress bar, a line without its end yet. On a terminal
    it stays at the bottom, live, and steps aside for the others' lines. Elsewhere
    it is written when it ends, and every 5 seconds until then. A stream that is
    None shows nothing.
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

    def line(self, name: str, text: str) -> None:
        """Shows a finished line of a task."""
        if self._open and self._open[0] == name:
            self._erase()
            self._open = None
        self._above(f"{self._prefix(name)}{text}\n")

    def partial(self, name: str, text: str) -> None:
        """Shows the unfinished line of a task; '' if it has none."""
        if text:
            if self._open is None:
                self._open_shown = ("", self._clock())
            self._open = (name, text)
        elif self._open and self._open[0] == name:
            self._erase()
            self._open = None
        self._redraw()

    def notice(self, text: str) -> None:
        """Tells the user something of the launcher's own, apart from the logs."""
        self._erase()
        for line in text.splitlines():
            if self._notices is not None:
                _write(self._notices, f"{self._prefix('launch')}{line}\n")
        self._redraw()

    def mute(self) -> None:
        """Shows nothing from now on."""
        self._stream = self._notices = None

    def tick(self) -> None:
        """Shows an open line that has waited long, where it is not live."""
        if self._live or self._open is None:
            return
        shown, since = self._open_shown
        name, text = self._open
        if text != shown and self._clock() - since >= _SECONDS_BETWEEN_PARTIALS:
            self._write(f"{self._prefix(name)}{text}\n")
            self._open_shown = (text, self._clock())

    @property
    def waiting(self) -> bool:
        """Whether `tick` has to be called in a while."""
        return self._open is not None and not self._live

    def _above(self, text: str) -> None:
        self._erase()
        self._write(text)
        self._redraw()

    def _erase(self) -> None:
        if self._live and self._open:
            self._write(_ERASE_LINE)

    def _redraw(self) -> None:
        if self._live and self._open:
            name, text = self._open
            columns = shutil.get_terminal_size().columns - self._width - 2
            self._write(f"{_ERASE_LINE}{self._prefix(name)}{_fit(text, columns)}")

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
    # A terminal cannot erase an open line that has wrapped.
    plain = _ESCAPES.sub("", text)
    return text if len(plain) <= columns else plain[: max(columns, 0)]


def _write(stream: TextIO, text: str) -> bool:
    """Writes, or says that nobody reads any longer: the job outlives its viewer."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        return False
    return True
