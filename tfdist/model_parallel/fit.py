"""Assignments that the devices have memory for. Pure."""

import math
from collections.abc import Sequence

from tfdist.model_parallel.errors import DoesNotFitError
from tfdist.model_parallel.work import Assignment, Work

# How many times the exact search may put a unit on a device.
_TRIES = 50_000


def place_by_memory(work: Work) -> Assignment:
    """Returns an assignment that fits, whatever its seconds.

    The largest unit first, each to the device with the most room left; if that fails, a
    search through all ways, as far as 50,000 tries go.

    Raises:
        DoesNotFitError: If none was found; the message says what is missing.
    """
    order = sorted(range(len(work.unit_bytes)), key=lambda u: -work.unit_bytes[u])
    found = _most_room(work, order)
    if not work.fits(found):
        searched = _search(work, order)
        if searched is None:
            raise _error(work, found)
        found = searched
    return tuple(found)


def _most_room(work: Work, order: Sequence[int]) -> list[int]:
    room, found = list(work.memories), [0] * len(order)
    for unit in order:
        device = max(range(len(room)), key=room.__getitem__)
        found[unit] = device
        room[device] -= work.unit_bytes[unit]
    return found


def _search(work: Work, order: Sequence[int]) -> list[int] | None:
    """Tries the devices of each unit in turn, the fullest that has room first."""
    room, found = list(work.memories), [0] * len(order)
    choices: list[list[int]] = []
    tries = 0
    while len(choices) < len(order) and tries < _TRIES:
        size = work.unit_bytes[order[len(choices)]]
        # Of devices with equal room one will do.
        with_room = {left: d for d, left in enumerate(room) if size <= left}
        choices.append([with_room[left] for left in sorted(with_room, reverse=True)])
        while choices and not choices[-1]:
            choices.pop()
            if choices:
                unit = order[len(choices) - 1]
                room[found[unit]] += work.unit_bytes[unit]
        if not choices:
            return None
        tries += 1
        unit = order[len(choices) - 1]
        found[unit] = choices[-1].pop()
        room[found[unit]] -= work.unit_bytes[unit]
    return found if len(choices) == len(order) else None


def _error(work: Work, nearest: Sequence[int]) -> DoesNotFitError:
    largest = max(range(len(work.unit_bytes)), key=work.unit_bytes.__getitem__)
    name, size = work.graph.units[largest], work.unit_bytes[largest]
    most, all_rooms = max(work.memories), math.fsum(work.memories)
    total = sum(work.unit_bytes)
    rooms = zip(work.used(nearest), work.memories, strict=True)
    over = sum(max(0, used - room) for used, room in rooms)
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
        missing = int(over)
        why = (
            f"the layers take {total:,} bytes of {int(all_rooms):,}, but no assignment "
            f"of whole layers was found; in the nearest, {missing:,} bytes have no room"
        )
    return DoesNotFitError(
        f"the model does not fit: {why}. Add a device or memory, make the batch smaller "
        "(activations), or take an optimizer with fewer slots",
        missing,
    )
