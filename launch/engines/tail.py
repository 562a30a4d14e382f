"""A file that grows: the lines that have come since the last look."""

import contextlib
from collections.abc import Iterator, Mapping


class Tail:
    """The lines of a file as it grows; none as long as there is no file."""

    def __init__(self, path: str, prefix: str = "") -> None:
        self._path = path
        self._prefix = prefix
        self._position = 0
        self._rest = ""

    def lines(self) -> Iterator[str]:
        """Yields the lines that are complete by now."""
        with (
            contextlib.suppress(FileNotFoundError),
            open(self._path, errors="replace") as log,
        ):
            log.seek(self._position)
            *lines, self._rest = (self._rest + log.read()).split("\n")
            self._position = log.tell()
            yield from (f"{self._prefix}{line}" for line in lines)

    def rest(self) -> Iterator[str]:
        """Yields the last line if nothing has ended it."""
        if self._rest:
            yield f"{self._prefix}{self._rest}"
            self._rest = ""


def of_tasks(logs: Mapping[str, str]) -> list[Tail]:
    """Returns the logs of tasks, each line after its task, as the launcher shows them."""
    width = max(map(len, logs), default=0) + 2
    return [Tail(log, f"[{name}]".ljust(width) + " ") for name, log in logs.items()]
