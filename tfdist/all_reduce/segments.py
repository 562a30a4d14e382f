"""How many segments a chunk is sent in, and how long the ring takes with them.

A device passes a segment on as soon as it has added it up, while the other segments of
the chunk still arrive. So segments hide the latency and the addition behind the bytes.

>>> network = Network(latency=1e-3, bandwidth=25e6, seconds_per_reduced_byte=2e-10)
>>> chunk_bytes = 8_000_000 / 8
>>> segments_of(chunk_bytes, network.bandwidth)
2
>>> round(pipelined_ring_seconds(8_000_000, 8, network, segments=2), 3)
0.588
"""

from tfdist.all_reduce.cost import ring
from tfdist.all_reduce.network import CostError, Network, checked_size
from tfdist.all_reduce.schedule import checked_devices

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

    Raises:
        ScheduleError: If there is no device.
        CostError: If there is no segment, or the size is negative.
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
