"""Tells the launcher how fast `fit` is, which shows it while it runs."""

import time
from collections.abc import Iterator
from typing import Any

from tfdist.liveness import supervision

_INTERVAL = 1.0  # seconds


def reported(strides: Iterator[Any], driver: Any) -> Iterator[Any]:
    """Passes on what `fit` takes from its data, and reports the steps now and then."""
    return _reporter.follow(strides, driver) if supervision.is_supervised() else strides


class _Reporter:
    """Counts the steps of this process: an epoch may be shorter than the interval."""

    def __init__(self) -> None:
        self._has_traced = False
        self._steps, self._seconds = 0, 0.0

    def follow(self, strides: Iterator[Any], driver: Any) -> Iterator[Any]:
        # What only some strategies know: what each worker has done, and how stale it was.
        more = getattr(driver, "progress", dict)
        # What comes between epochs is no training.
        before = time.monotonic()
        for first, last, data in strides:
            yield first, last, data
            now = time.monotonic()
            if self._has_traced:  # Tracing takes longer than many steps.
                self._steps += last + 1 - first
                self._seconds += now - before
            self._has_traced, before = True, now
            if self._seconds >= _INTERVAL:
                numbers = {"steps": self._steps, "seconds": self._seconds, **more()}
                self._steps, self._seconds = 0, 0.0
                supervision.report_progress(numbers)


_reporter = _Reporter()
