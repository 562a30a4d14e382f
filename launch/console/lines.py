"""Splits a stream of bytes into the lines a terminal would show."""

import os
from collections.abc import Callable, Iterator

_LONGEST = _CHUNK = 64 * 1024
_CHUNKS_AT_ONCE = 16
# Keras moves the cursor back with backspaces, then with a carriage return.
_MOVES = b"\r\b"


class LineSplitter:
    r"""Splits a task's output into lines as it arrives.

    Progress bars redraw themselves after a carriage return, which moves the cursor to
    the start of the line: only the last drawing is kept. Bytes that are not UTF-8
    become escapes. A line longer than 64 KiB is split, to bound memory.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"one\n 1/2\r 2/2"), splitter.partial
    (['one'], ' 2/2')
    >>> splitter.feed(b" done\n"), splitter.partial
    ([' 2/2 done'], '')
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Takes more output, and returns the lines it finishes."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[_start_of_last_drawing(rest) :]
        while len(self._rest) > _LONGEST:
            lines.append(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        return [_decode(line) for line in lines]

    def read(self, pipe: int) -> Iterator[tuple[bytes, list[str]]]:
        """Yields what a non-blocking pipe has, and the lines that it finishes.

        At its end, that is b"" with the last line, which may lack its newline. It stops
        after a while, so that a task that prints without pause does not starve the others.
        """
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                data = os.read(pipe, _CHUNK)
            except BlockingIOError:
                return
            yield data, self.feed(data) if data else self.close()
            if not data:
                return

    @property
    def partial(self) -> str:
        """The unfinished line, or ''."""
        # The last character may be incomplete: the rest of its bytes are still to come.
        return _last_drawing(self._rest).decode(errors="ignore")

    def close(self) -> list[str]:
        """Ends the stream, and returns its unfinished last line, if there is one."""
        rest, self._rest = self._rest, b""
        return [_decode(rest)] if rest else []


def _decode(line: bytes) -> str:
    return _last_drawing(line).decode(errors="backslashreplace")


def _last_drawing(line: bytes) -> bytes:
    return line[_start_of_last_drawing(line) :].rstrip(_MOVES)


def last_lines(path: str) -> list[str]:
    """Reads the last 64 KiB of a log; all of it may be larger than the memory."""
    with open(path, "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LONGEST))
        splitter = LineSplitter()
        return [*splitter.feed(log.read(_LONGEST)), *splitter.close()]


def tail(
    path: str, most: int, hidden: Callable[[str], bool] = lambda line: False
) -> str:
    """Returns the last lines of a log, indented, without hidden ones."""
    lines = [line for line in last_lines(path) if not hidden(line)][-most:]
    if not lines:
        return f"{path} is empty"
    return "\n".join([f"{path} ends with", *(f"  {line}" for line in lines)])


def _start_of_last_drawing(line: bytes) -> int:
    # After a return at the very end, nothing has been drawn over the line yet.
    return line.rfind(b"\r", 0, len(line.rstrip(_MOVES))) + 1
