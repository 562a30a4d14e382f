"""Consecutive stages of equal cost: what is done by hand, and a start for the search. Pure."""

from tfdist.model_parallel.work import Assignment, Work

_HALVINGS = 40
_ROUNDING = 1e-12


def place_in_stages(work: Work) -> Assignment | None:
    """Cuts the graph's order into one stage per device, the slowest as fast as possible.

    The devices in their order; a stage's seconds are those of its nodes at the speed of
    its device. Links do not count.

    Cost: O(n) for each of 40 halvings of the interval of the slowest stage's seconds.

    Returns:
        The device of each unit; None if in this order the layers do not fit.
    """
    speeds = [device.speed for device in work.devices]
    low, high = 0.0, work.graph.seconds / min(speeds)
    best = _fill(work, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _fill(work, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _fill(work: Work, seconds: float) -> Assignment | None:
    """Fills one device after another up to so many seconds."""
    assignment: list[int] = []
    device, spent, left = 0, 0.0, work.memories[0]
    for cost, size in zip(work.unit_seconds, work.unit_bytes, strict=True):
        # Relative to the whole: what is left of it is no more exact than that.
        while size > left or (
            spent + cost > seconds * work.devices[device].speed * (1 + _ROUNDING)
        ):
            device += 1
            if device == len(work.devices):
                return None
            spent, left = 0.0, work.memories[device]
        spent += cost
        left -= size
        assignment.append(device)
    return tuple(assignment)
