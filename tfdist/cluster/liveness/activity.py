"""The chief's record of what it waits for and what each worker does."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

STEPS, DATA = "steps", "data"
"""The things that the main thread can wait for."""


class Activity:
    """Written by the threads that work, read by the watchdog's thread.

    Attributes:
        worker_of: The worker of each replica; a worker has one, unless this says so.
    """

    def __init__(self, num_workers: int) -> None:
        self._lock = threading.Lock()
        self.worker_of: Sequence[int] = range(num_workers)
        self._since: dict[int, float] = {}
        self._finished = dict.fromkeys(range(num_workers), 0)
        self._lost: set[int] = set()
        # Without the lock, as `_calls`: only the main thread writes them.
        self._waiting: tuple[str, float] | None = None
        self._calls = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Records that the main thread is in `fit` or a similar call."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @property
    def under_way(self) -> bool:
        """True if a step runs or is waited for."""
        waits_for_steps = self._waiting is not None and self._waiting[0] == STEPS
        return bool(self._since) or waits_for_steps

    @property
    def working(self) -> bool:
        """True if the cluster is needed."""
        return self._calls > 0 or self.under_way

    def begun(self, replica: int) -> None:
        """Records that a function was sent to a replica."""
        with self._lock:
            self._since[replica] = time.monotonic()
            self._lost.discard(replica)

    def ended(self, replica: int, well: bool) -> None:
        """Records that a replica's function has finished, or was taken back from it."""
        with self._lock:
            self._since.pop(replica, None)
            self._finished[self.worker_of[replica]] += well
            if not well:
                self._lost.add(replica)

    @property
    def lost(self) -> frozenset[int]:
        """The replicas that have lost a function, and have got none since."""
        with self._lock:
            return frozenset(self._lost)

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Records the main thread's wait."""
        before = self._waiting
        self._waiting = (what, time.monotonic())
        try:
            yield
        finally:
            self._waiting = before

    def waits(self, what: str) -> float:
        """Returns how long the main thread has waited for `what`, in seconds."""
        # Read once: the main thread may replace it meanwhile.
        waiting = self._waiting
        is_so = waiting is not None and waiting[0] == what
        return time.monotonic() - waiting[1] if waiting and is_so else 0.0

    @property
    def finished(self) -> dict[str, int]:
        """The number of functions that have finished on each worker."""
        with self._lock:
            return {f"worker:{i}": count for i, count in self._finished.items()}

    @property
    def busy(self) -> dict[str, float]:
        """Seconds that each worker has run a function; idle workers are absent."""
        now = time.monotonic()
        busy: dict[str, float] = {}
        with self._lock:
            for replica, since in self._since.items():
                name = f"worker:{self.worker_of[replica]}"
                busy[name] = max(busy.get(name, 0.0), now - since)
        return busy
