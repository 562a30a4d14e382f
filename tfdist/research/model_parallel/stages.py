"""Consecutive stages of equal cost: what is done by hand, and a start for the search."""

from collections.abc import Callable
from typing import TypeVar

from tfdist.research.model_parallel.work import Assignment, Work

T = TypeVar("T")
_HALVINGS = 40
# Relative to the whole: what is left of it is no more exact than that.
ROUNDING = 1e-12


def place_in_stages(work: Work) -> Assignment | None:
    """Cuts the layers' order into a stage per device, the slowest one fast.

    The devices in their order; a stage's seconds are those of its nodes at the speed of
    its device. Links do not count. Returns None if the layers do not fit in this order.
    """
    slowest = min(device.speed for device in work.devices)
    return shortest(lambda most: _fill(work, most), work.graph.seconds / slowest)


def shortest(fill: Callable[[float], T | None], most: float) -> T | None:
    """Returns the stages whose longest one is shortest, by 40 halvings of its seconds.

    `fill` returns stages of at most that many seconds, or None if there are none; `most`
    is enough, if anything is.
    """
    low, high = 0.0, most
    best = fill(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = fill(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _fill(work: Work, seconds: float) -> Assignment | None:
    """Fills one device after another with at most `seconds`."""
    assignment: list[int] = []
    device, spent, left = 0, 0.0, work.memories[0]
    for cost, size in zip(work.unit_seconds, work.unit_bytes, strict=True):
        while size > left or (
            spent + cost > seconds * work.devices[device].speed * (1 + ROUNDING)
        ):
            device += 1
            if device == len(work.devices):
                return None
            spent, left = 0.0, work.memories[device]
        spent += cost
        left -= size
        assignment.append(device)
    return tuple(assignment)
