"""The points at which this worker waits for all others, and who waits elsewhere.

All workers come to the same points in the same order. So two workers whose points have one
number, and are not the same, wait for each other forever: no clock has to tell.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfdist import _tf
from tfdist.cluster.board import Board
from tfdist.peers.calls import (
    OF_THE_PROGRAM,
    WAITS,
    LoneCallError,
    differing,
    is_not_met,
)

_LOOK_EVERY = 1.0  # seconds
_BITS = 8
_NAME = (1 << _BITS) - 1


class Waits:
    """Numbers the points, and fails a wait that cannot end.

    A worker that has waited for a second tells the others at which point.

    Cost: nothing but a number, and two messages to each other worker after a second.

    Attributes:
        count: To how many points this worker has come.

    Args:
        board: Tells the others numbers.
        names: The names of all workers.
        me: The index of this one.
        abort: Fails what this process waits for, given a reason.
    """

    def __init__(
        self,
        board: Board,
        names: Sequence[str],
        me: int,
        abort: Callable[[str], None] = _tf.abort_collectives,
    ) -> None:
        self._board, self._names, self._me, self._abort = board, names, me, abort
        self.count = 0
        self._here: int | None = None
        self._called = -1
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()

    @contextlib.contextmanager
    def at(self, wait: str) -> Iterator[None]:
        """Surrounds a wait for all workers: one of `calls.WAITS`.

        Raises:
            LoneCallError: If another worker waits for something else.
        """
        before = self._here
        here = self._here = before or self._numbered(WAITS.index(wait))
        if not before and wait in OF_THE_PROGRAM:
            self._called = WAITS.index(wait)
        try:
            yield
        except StopIteration:
            raise
        except Exception as error:
            # Messages of two calls meet before either worker has told of its own.
            look = self._told_in_time if is_not_met(str(error)) else self._elsewhere
            if words := look(self._here or here):
                raise LoneCallError(words) from None
            raise
        finally:
            # A wait within another is the same point, and what follows is the next one:
            # `test_on_batch` resets the metrics, and then takes a step.
            self._here = None if before is None else self._numbered(before & _NAME)

    def _numbered(self, wait: int) -> int:
        self.count += 1
        return self.count << _BITS | wait

    def _watch(self) -> None:
        last = told = None
        while not self._stopped.wait(_LOOK_EVERY):
            last, here = self._here, last
            if here is None or here != last:
                continue
            if here != told:
                self._tell(here)
                told = here
            if words := self._elsewhere(here):
                self._abort(words)
                return

    def _told_in_time(self, here: int) -> str:
        self._tell(here)
        end = time.monotonic() + _LOOK_EVERY
        while not (words := self._elsewhere(here)) and time.monotonic() < end:
            time.sleep(_LOOK_EVERY / 10)
        return words

    def _elsewhere(self, here: int) -> str:
        points = self._told("waits") | {self._names[self._me]: here}
        called = self._told("called") | {self._names[self._me]: self._called}
        return elsewhere(points, here, called)

    def _tell(self, here: int) -> None:
        # Whoever knows where this worker waits also knows its last call.
        self._board.tell(f"called {self._me}", self._called)
        self._board.tell(f"waits {self._me}", here)

    def _told(self, what: str) -> dict[str, int]:
        keys = [f"{what} {index}" for index in range(len(self._names))]
        return dict(zip(self._names, self._board.told(keys), strict=True))


def waiting(waits: Waits | None, wait: str) -> contextlib.AbstractContextManager[None]:
    """Surrounds a wait for all workers, one of `calls.WAITS`, if there are others."""
    return contextlib.nullcontext() if waits is None else waits.at(wait)


def elsewhere(
    points: Mapping[str, int], here: int, called: Mapping[str, int] | None = None
) -> str:
    """Returns who waits where, or '' if nobody waits at another point of one number.

    Args:
        points: The point of each worker that is known to wait.
        here: The point of this one.
        called: The index in `WAITS` of each worker's last call; -1 if it is unknown.

    >>> elsewhere({"worker:0": 0x103, "worker:1": 0x103, "worker:2": -1}, 0x103)
    ''
    >>> elsewhere({"worker:0": 0x103, "worker:1": 0x202}, 0x103)
    ''
    >>> elsewhere({"worker:0": 0x103, "worker:1": 0x102}, 0x103).partition(". ")[0]
    'worker:0 calls predict, and worker:1 calls evaluate'
    """
    waits = {
        name: point & _NAME
        for name, point in points.items()
        if point >> _BITS == here >> _BITS
    }
    last = [(called or {}).get(name, -1) for name in waits]
    return differing(list(waits.values()), list(waits), [] if -1 in last else last)
