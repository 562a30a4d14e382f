"""What the chief waits for, and what each worker does: seen from the chief."""

import contextlib
import threading
import time
from collections.abc import Iterator

STEPS, DATA = "steps", "data"
"""What the main thread may wait for."""


class Activity:
    """Noted by the threads that work, read by the one that watches.

    Args:
        num_workers: Their number.
    """

    def __init__(self, num_workers: int) -> None:
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}
        self._finished = dict.fromkeys(range(num_workers), 0)
        self._waiting: tuple[str, float] | None = None
        self._calls = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Notes that the main thread is in `fit`, or the like."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @property
    def under_way(self) -> bool:
        """Whether steps are waited for, or run."""
        waits_for_steps = self._waiting is not None and self._waiting[0] == STEPS
        return bool(self._since) or waits_for_steps

    @property
    def working(self) -> bool:
        """Whether the cluster is needed."""
        return self._calls > 0 or self.under_way

    def begun(self, worker: int) -> None:
        """Notes that a worker was sent a function."""
        with self._lock:
            self._since[worker] = time.monotonic()

    def ended(self, worker: int, well: bool) -> None:
        """Notes that a function has ended on a worker, or was taken back from it."""
        with self._lock:
            self._since.pop(worker, None)
            self._finished[worker] += well

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Notes what the main thread waits for."""
        before = self._waiting
        self._waiting = (what, time.monotonic())
        try:
            yield
        finally:
            self._waiting = before

    def waits(self, what: str) -> float:
        """For how long the main thread has waited for it, in seconds."""
        waiting = self._waiting
        is_so = waiting is not None and waiting[0] == what
        return time.monotonic() - waiting[1] if waiting and is_so else 0.0

    @property
    def finished(self) -> dict[str, int]:
        """How many functions have finished on each worker."""
        with self._lock:
            return {f"worker:{i}": count for i, count in self._finished.items()}

    @property
    def busy(self) -> dict[str, float]:
        """For how long each worker has run a function; idle ones are absent."""
        now = time.monotonic()
        with self._lock:
            return {f"worker:{i}": now - since for i, since in self._since.items()}
