"""Which processes still run."""

import contextlib
import time
from collections.abc import Iterable

import psutil

from .deadline import DEADLINE


def still_running(
    processes: Iterable[psutil.Process], seconds: float = DEADLINE
) -> list[psutil.Process]:
    """Those that have not ended within `seconds`.

    One that has ended but was not waited for yet has ended: an orphan's zombie stays until
    the first process of the machine looks, and some look late.
    """
    processes = list(processes)
    deadline = time.monotonic() + seconds
    while left := [each for each in processes if _runs(each)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
