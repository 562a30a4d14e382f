"""Chooses the algorithm that takes the least time in the cost model, and segments.

A device passes a segment of a chunk on as soon as it has added it up, while the others
still arrive. So segments hide the latency and the addition behind the bytes.

>>> network = Network(
...     latency=1e-3,
...     bandwidth=25e6,
...     seconds_per_reduced_byte=2e-10,
...     seconds_per_message=1e-4,
... )
>>> choose(4_000, 8, network), choose(100_000_000, 8, network)
('all_to_all', 'ring')
>>> segments_of(8_000_000 / 8, network.bandwidth)
2
>>> round(pipelined_ring_seconds(8_000_000, 8, network, segments=2), 3)
0.564
"""

from tfdist.all_reduce.cost import COSTS, ring
from tfdist.all_reduce.network import CostError, Network, checked_size
from tfdist.all_reduce.schedule import checked_algorithm, checked_devices

SEGMENT_SECONDS = 0.016
"""How long a segment keeps a link busy.

Shorter segments pipeline better. But each costs processor time, of which a fast link
leaves less.
"""

MIN_SEGMENT_BYTES = 500_000
"""A segment of this size takes far longer than an empty message."""

MAX_SEGMENT_BYTES = 2_000_000
"""Two segments may be in flight to a device, which has to hold them in memory."""


def segments_of(chunk_bytes: float, bandwidth: float) -> int:
    """Returns how many segments a chunk is sent in, over a link of `bandwidth` bytes/s.

    >>> [segments_of(size, bandwidth=25e6) for size in (1e3, 1e6, 1e7)]
    [1, 2, 20]
    >>> [segments_of(size, bandwidth=125e6) for size in (1e3, 1e6, 1e7)]
    [1, 1, 5]
    """
    of_link = bandwidth * SEGMENT_SECONDS
    segment_bytes = min(max(of_link, MIN_SEGMENT_BYTES), MAX_SEGMENT_BYTES)
    return max(1, round(chunk_bytes / segment_bytes))


def pipelined_ring_seconds(
    size_bytes: int, num_devices: int, network: Network, segments: int
) -> float:
    """Returns how long the ring takes if each chunk is sent in segments.

    The `k` segments of a step occupy an interface for `k * t` seconds, with
    `t = gap + size / (n * k * bandwidth)`. A segment can leave the next device `t + d`
    after it began to leave the previous one, where `d` is the latency without the gap
    and, in the first `n - 1` steps, the time to add the segment up. The longer of the
    two decides: a step takes `max(k * t, t + d)`, and `k * t + d` remain after the last
    step began. With one segment this is `ring(n).seconds(...)`. A few segments hide
    latency and addition behind the bytes; with many, the gaps add up.

    Additions of different segments are assumed not to wait for each other.

    Source: the longest path through the grid of steps and segments; the bandwidth is
    that of Patarasuk and Yuan 2009 (see `tfdist.all_reduce.cost.lower_bound`).
    """
    n = checked_devices(num_devices)
    if segments < 1:
        raise CostError(f"a chunk must have at least 1 segment, not {segments}")
    chunk_bytes = checked_size(size_bytes) / n
    if n == 1:
        return 0.0
    busy = chunk_bytes / network.bandwidth + segments * network.gap
    passed_on = network.latency + chunk_bytes / network.bandwidth / segments
    added = chunk_bytes * network.seconds_per_reduced_byte / segments
    return max(
        ring(n).processor_seconds(size_bytes, network, segments),
        (n - 1) * max(busy, passed_on + added)
        + (n - 2) * max(busy, passed_on)
        + busy
        + (network.latency - network.gap),
    )


PREFERRED = (
    "ring",
    "reduce_then_broadcast",
    "tree",
    "halving_doubling",
    "all_to_all",
)
"""The order of preference among algorithms that are about equally fast.

First the ring, in which no two devices send to the same one at once; then the fewest
messages. Both matter where the model is too optimistic.
"""

NEARLY = 1.2
"""How many times as long as the fastest algorithm a preferred one may take.

This does not apply where processors are the bottleneck: an algorithm that uses more
processor time is slower, and it makes no difference who sends to whom.
"""


def seconds(
    algorithm: str, size_bytes: int, num_devices: int, network: Network
) -> float:
    """Returns how long an algorithm takes; the ring, in segments as it is executed."""
    if checked_algorithm(algorithm) == "ring":
        n = checked_devices(num_devices)
        segments = segments_of(size_bytes / n, network.bandwidth)
        return pipelined_ring_seconds(size_bytes, n, network, segments)
    # The others are sent in segments too, but the model has no formula for it.
    return COSTS[algorithm](num_devices).seconds(size_bytes, network)


def choose(size_bytes: int, num_devices: int, network: Network) -> str:
    """Returns the name of an algorithm that is the fastest, or nearly so.

    It is the first of `PREFERRED` among those within `NEARLY` of the fastest. It is
    never one that keeps shared processors busy longer than the fastest takes in total.
    """
    times = {
        each: seconds(each, size_bytes, num_devices, network) for each in PREFERRED
    }
    fastest = min(times.values())
    enough = fastest * NEARLY
    return next(
        each
        for each, taken in times.items()
        # The fastest may itself be limited by processors. The second condition would
        # then reject it, and none might be left.
        if taken == fastest
        or (
            taken <= enough
            and COSTS[each](num_devices).processor_seconds(size_bytes, network)
            < fastest
        )
    )
