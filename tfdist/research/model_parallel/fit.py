"""Assignments that the devices have memory for."""

import math
from collections.abc import Sequence

from tfdist._support.errors import Error
from tfdist.research.model_parallel.work import Assignment, Work

# The number of times that the exact search may put a unit on a device.
_TRIES = 50_000
# The same for the message of an error, which searches often.
_FEW_TRIES = 5_000


class DoesNotFitError(Error, ValueError):
    """Layers that need more memory than the devices have.

    Attributes:
        missing: How many bytes are missing.
    """

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


def place_by_memory(work: Work) -> Assignment:
    """Returns an assignment that fits, regardless of its seconds.

    The largest unit first, each to the device with the most room left; if that fails, a
    search through all ways, as far as 50,000 tries go. If none is found, the
    DoesNotFitError says what is missing.
    """
    found = _fitting(work.unit_bytes, work.memories, _TRIES)
    if found is None:
        raise _error(work)
    return tuple(found)


def _fitting(
    sizes: Sequence[int], memories: Sequence[float], tries: int
) -> list[int] | None:
    order = sorted(range(len(sizes)), key=lambda unit: -sizes[unit])
    room, found = list(memories), [0] * len(sizes)
    for unit in order:
        device = max(range(len(room)), key=room.__getitem__)
        found[unit] = device
        room[device] -= sizes[unit]
    return found if min(room) >= 0 else _search(sizes, memories, order, tries)


def _search(
    sizes: Sequence[int], memories: Sequence[float], order: Sequence[int], tries: int
) -> list[int] | None:
    """Tries the devices of each unit in turn, the fullest that has room first."""
    room, found = list(memories), [0] * len(order)
    choices: list[list[int]] = []
    while len(choices) < len(order) and tries:
        size = sizes[order[len(choices)]]
        # One of several devices with equal room will do.
        with_room = {left: d for d, left in enumerate(room) if size <= left}
        choices.append([with_room[left] for left in sorted(with_room, reverse=True)])
        while choices and not choices[-1]:
            choices.pop()
            if choices:
                unit = order[len(choices) - 1]
                room[found[unit]] += sizes[unit]
        if not choices:
            return None
        tries -= 1
        unit = order[len(choices) - 1]
        found[unit] = choices[-1].pop()
        room[found[unit]] -= sizes[unit]
    return found if len(choices) == len(order) else None


def _error(work: Work) -> DoesNotFitError:
    largest = max(range(len(work.unit_bytes)), key=work.unit_bytes.__getitem__)
    name, size = work.graph.units[largest], work.unit_bytes[largest]
    most, all_rooms = max(work.memories), math.fsum(work.memories)
    total = sum(work.unit_bytes)
    if size > most:
        missing = int(size - most)
        why = (
            f"layer {name!r} alone takes {size:,} bytes, and the largest device has "
            f"{int(most):,}: {missing:,} bytes are missing"
        )
    elif total > all_rooms:
        missing = int(total - all_rooms)
        why = (
            f"the layers take {total:,} bytes, and all devices together have "
            f"{int(all_rooms):,}: {missing:,} bytes are missing"
        )
    else:
        missing = _missing_on_each(work)
        why = (
            f"the layers take {total:,} bytes of {int(all_rooms):,}, but no assignment "
            f"of whole layers was found; with {missing:,} bytes more on each device "
            "there is one"
        )
    return DoesNotFitError(
        f"the model does not fit: {why}. Add a device or memory, make the batch smaller "
        "(activations), or take an optimizer with fewer slots",
        missing,
    )


def _missing_on_each(work: Work) -> int:
    """Returns how many bytes more each device would have to have."""
    low, high = 0, sum(work.unit_bytes)
    while high - low > 1:
        middle = (low + high) // 2
        memories = [memory + middle for memory in work.memories]
        if _fitting(work.unit_bytes, memories, _FEW_TRIES) is None:
            low = middle
        else:
            high = middle
    return high
