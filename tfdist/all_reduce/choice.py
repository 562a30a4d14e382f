"""Chooses the algorithm that takes the least time in the cost model.

>>> network = Network(
...     latency=1e-3,
...     bandwidth=25e6,
...     seconds_per_reduced_byte=2e-10,
...     seconds_per_message=1e-4,
... )
>>> choose(4_000, 8, network), choose(100_000_000, 8, network)
('all_to_all', 'ring')
"""

from tfdist.all_reduce.cost import COSTS
from tfdist.all_reduce.network import Network
from tfdist.all_reduce.schedule import checked_algorithm, checked_devices
from tfdist.all_reduce.segments import pipelined_ring_seconds, segments_of

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
    """Returns how long an algorithm takes; the ring, in segments as it is executed.

    Raises:
        ScheduleError: If there is no such algorithm, or no device.
        CostError: If the size is negative.
    """
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

    Raises:
        ScheduleError: If there is no device.
        CostError: If the size is negative.
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
