"""A stream of bytes becomes the lines that a terminal would have shown."""

_LONGEST = 64 * 1024
_MOVES = b"\r\b"  # Keras moves back by backspaces, and then by a return.


class LineSplitter:
    r"""Splits a task's output into lines, as it comes.

    A carriage return goes back to the start of the line, which is how progress
    bars redraw themselves: only the last drawing is kept. Bytes that are not
    UTF-8 become escapes. A line longer than 64 KiB is cut, to bound memory.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"one\n 1/2\r 2/2"), splitter.partial
    (['one'], ' 2/2')
    >>> splitter.feed(b" done\n"), splitter.partial
    ([' 2/2 done'], '')
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Takes more output, and returns the lines that it finished."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[_start_of_last_drawing(rest) :]
        while len(self._rest) > _LONGEST:
            lines.append(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        return [_decode(line) for line in lines]

    @property
    def partial(self) -> str:
        """The line that is not finished yet, or ''."""
        # A character may have arrived by half: its other bytes will follow.
        return _last_drawing(self._rest).decode(errors="ignore")

    def close(self) -> list[str]:
        """Ends the stream, and returns its last line if it was not finished."""
        rest, self._rest = self._rest, b""
        return [_decode(rest)] if rest else []


def _decode(line: bytes) -> str:
    return _last_drawing(line).decode(errors="backslashreplace")


def _last_drawing(line: bytes) -> bytes:
    return line[_start_of_last_drawing(line) :].rstrip(_MOVES)


def _start_of_last_drawing(line: bytes) -> int:
    # A return at the very end has not been drawn over yet.
    return line.rfind(b"\r", 0, len(line.rstrip(_MOVES))) + 1
