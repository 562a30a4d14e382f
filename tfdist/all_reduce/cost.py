"""What an all-reduce costs: formulas of its steps, bytes and seconds.

A message between two devices takes `latency + bytes / bandwidth` seconds, and adding
`b` bytes up takes `b * seconds_per_reduced_byte`: the model, often written with alpha,
beta and gamma, of Chan, Heimlich, Purkayastha and van de Geijn, "Collective
communication: theory, practice, and experience", Concurrency and Computation: Practice
and Experience 19(13), 2007. A step ends when its slowest device is done.

All algorithms move `2(n - 1)` sizes of the tensor between `n` devices, and none can do
with less (`lower_bound`). They differ in how even the load of the interfaces is, and in
the number of steps.

>>> network = Network(
...     latency=1e-3,
...     bandwidth=25e6,
...     seconds_per_reduced_byte=2e-10,
...     seconds_per_message=1e-4,
... )
>>> choose(4_000, 8, network), choose(100_000_000, 8, network)
('all_to_all', 'ring')
>>> choose_segments(100_000_000, 8, network)
2
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TypeVar

from tfdist.all_reduce.schedule import checked_algorithm, checked_devices

PREFERRED = (
    "ring",
    "reduce_then_broadcast",
    "tree",
    "halving_doubling",
    "all_to_all",
)
"""Of algorithms that are about as fast: the ring, in which no two devices send to the
same one at once, and then the fewest messages. Both help where the model is too kind."""

NEARLY = 1.2
"""How many times as long as the fastest a preferred algorithm may take.

Not if the processors decide: whoever keeps them longer is slower, and who sends to whom
makes no difference."""

T = TypeVar("T")


class CostError(ValueError):
    """A number that no network or tensor has: the message says which are allowed."""


@dataclass(frozen=True)
class Network:
    """What connects the devices. Every device has one interface, which is full duplex.

    Attributes:
        latency: Seconds that an empty message takes, if no other is on the way.
        bandwidth: Bytes a second that an interface sends, and at once receives.
        seconds_per_reduced_byte: Seconds that a device takes to add one byte of a
            message to its own.
        seconds_per_message: The part of `latency` in which the interface is taken, so
            that the next message of the step has to wait (the gap of Culler et al.,
            "LogP: towards a realistic model of parallel computation", PPoPP 1993).
            None: all of it, as if an interface had one message at a time on the way,
            which is what Chan et al. assume.
        processor_seconds_per_message: Time that a message takes of processors which
            all devices share, as hosts do that are namespaces or containers of one
            machine. It passes while bytes travel: whichever takes longer counts.
        processor_seconds_per_byte: The same of each byte of it. What all devices send
            together is the same for every algorithm, but a link that is faster than
            the processors makes no difference then.

    Raises:
        CostError: If a number is negative, the bandwidth is 0, or messages follow each
            other in more than the latency.
    """

    latency: float
    bandwidth: float
    seconds_per_reduced_byte: float
    seconds_per_message: float | None = None
    processor_seconds_per_message: float = 0.0
    processor_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise CostError(f"bandwidth is above 0 bytes/s, not {self.bandwidth}")
        for name in (
            "latency",
            "seconds_per_reduced_byte",
            "processor_seconds_per_message",
            "processor_seconds_per_byte",
        ):
            if not getattr(self, name) >= 0:
                raise CostError(f"{name} is at least 0 s, not {getattr(self, name)}")
        if not 0 <= self.gap <= self.latency:
            raise CostError(
                f"seconds_per_message is a part of the latency, {self.latency} s, and "
                f"is at least 0, not {self.seconds_per_message}"
            )

    @property
    def gap(self) -> float:
        """Seconds from one message of an interface to the next, if both are empty."""
        if self.seconds_per_message is None:
            return self.latency
        return self.seconds_per_message


@dataclass(frozen=True)
class Cost:
    """What an all-reduce costs on any network. Sizes are in sizes of the tensor.

    What one device sends to one other in one step is one message.

    Attributes:
        steps: Steps, one after the other.
        messages: Messages of all devices.
        busiest_messages: Those that the busiest interface of a step sends, or those
            that it receives, whichever is more, added up over all steps.
        busiest_size: The same of what they carry.
        busiest_link: The most that one interface sends, or receives, in all steps.
        reduced: The most that one device adds up in a step, added up over all steps.
        moved: What all devices send together.
    """

    steps: int
    messages: int
    busiest_messages: int
    busiest_size: Fraction
    busiest_link: Fraction
    reduced: Fraction
    moved: Fraction

    def seconds(self, size_bytes: int, network: Network) -> float:
        """Returns how long it takes for a tensor of so many bytes, step by step."""
        return max(
            self.processor_seconds(size_bytes, network),
            self.steps * network.latency
            + (self.busiest_messages - self.steps) * network.gap
            + _checked_size(size_bytes) * float(self.busiest_size) / network.bandwidth
            + size_bytes * float(self.reduced) * network.seconds_per_reduced_byte,
        )

    def processor_seconds(
        self, size_bytes: int, network: Network, segments: int = 1
    ) -> float:
        """Returns for how long processors are busy that all devices share.

        Args:
            size_bytes: Of the tensor.
            network: What connects the devices.
            segments: In how many each message is sent.
        """
        return (
            self.messages * segments * network.processor_seconds_per_message
            + float(self.moved)
            * _checked_size(size_bytes)
            * network.processor_seconds_per_byte
        )


def lower_bound(num_devices: int) -> Fraction:
    """The least that the busiest interface can send, in sizes of the tensor.

    `2(n - 1) / n`: all devices together send at least `2(n - 1)` sizes (Patarasuk and
    Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    Journal of Parallel and Distributed Computing 69(2), 2009).

    Raises:
        ScheduleError: If there is no device.
    """
    n = checked_devices(num_devices)
    return Fraction(2 * (n - 1), n)


def ring(num_devices: int) -> Cost:
    """`2(n - 1)` steps of one message, of `1 / n` each; half of them are added up.

    Source: Patarasuk and Yuan 2009 (see `lower_bound`), who show that no algorithm
    needs less bandwidth.

    Raises:
        ScheduleError: If there is no device.
    """
    n = checked_devices(num_devices)
    steps = 2 * (n - 1)
    return Cost(
        steps=steps,
        messages=steps * n,
        busiest_messages=steps,
        busiest_size=Fraction(steps, n),
        busiest_link=Fraction(steps, n),
        reduced=Fraction(n - 1, n),
        moved=Fraction(steps),
    )


def reduce_then_broadcast(num_devices: int) -> Cost:
    """`n - 1` whole tensors to one device, which adds them up, and `n - 1` back.

    Source: the model of Chan et al. 2007 (see the module), who reduce and broadcast
    along trees, as `tree` does; here the tree is a star.

    Raises:
        ScheduleError: If there is no device.
    """
    others = checked_devices(num_devices) - 1
    return Cost(
        steps=2 if others else 0,
        messages=2 * others,
        busiest_messages=2 * others,
        busiest_size=Fraction(2 * others),
        busiest_link=Fraction(others),
        reduced=Fraction(others),
        moved=Fraction(2 * others),
    )


def tree(num_devices: int) -> Cost:
    """`2 ceil(log2(n))` steps of one message, of a whole tensor; half are added up.

    Source: the minimum-spanning-tree algorithms of Chan et al. 2007 (see the module).

    Raises:
        ScheduleError: If there is no device.
    """
    n = checked_devices(num_devices)
    levels = (n - 1).bit_length()
    return Cost(
        steps=2 * levels,
        messages=2 * (n - 1),
        busiest_messages=2 * levels,
        busiest_size=Fraction(2 * levels),
        busiest_link=Fraction(levels),
        reduced=Fraction(levels),
        moved=Fraction(2 * (n - 1)),
    )


def all_to_all(num_devices: int) -> Cost:
    """Two steps, of `n - 1` messages of `1 / n` at each interface at once.

    Source: the pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", International Journal of High
    Performance Computing Applications 19(1), 2005, where `n - 1` steps follow each
    other; these steps are taken at once.

    Raises:
        ScheduleError: If there is no device.
    """
    n = checked_devices(num_devices)
    return Cost(
        steps=2 if n > 1 else 0,
        messages=2 * n * (n - 1),
        busiest_messages=2 * (n - 1),
        busiest_size=Fraction(2 * (n - 1), n),
        busiest_link=Fraction(2 * (n - 1), n),
        reduced=Fraction(n - 1, n),
        moved=Fraction(2 * (n - 1)),
    )


def halving_doubling(num_devices: int) -> Cost:
    """`2 log2(p)` steps of one message: `1 / 2`, `1 / 4`, ... `1 / p`, and back.

    `p` is the largest power of two that is not above `n`. Each of the `n - p` extra
    devices sends, and in the end is sent, one whole tensor.

    Source: Rabenseifner's algorithm in Thakur et al. 2005 (see `all_to_all`).

    Raises:
        ScheduleError: If there is no device.
    """
    n = checked_devices(num_devices)
    doublings = n.bit_length() - 1
    p = 1 << doublings
    folds = 1 if n > p else 0
    halved = Fraction(p - 1, p)
    return Cost(
        steps=2 * doublings + 2 * folds,
        messages=2 * doublings * p + 2 * (n - p),
        busiest_messages=2 * doublings + 2 * folds,
        busiest_size=2 * halved + 2 * folds,
        busiest_link=2 * halved + folds,
        reduced=halved + folds,
        moved=Fraction(2 * (n - 1)),
    )


COSTS: Mapping[str, Callable[[int], Cost]] = MappingProxyType(
    {
        "ring": ring,
        "reduce_then_broadcast": reduce_then_broadcast,
        "tree": tree,
        "all_to_all": all_to_all,
        "halving_doubling": halving_doubling,
    }
)


def pipelined_ring_seconds(
    size_bytes: int, num_devices: int, network: Network, segments: int
) -> float:
    """How long the ring takes if each chunk is sent in segments.

    A device passes a segment on as soon as it has added it up, while the others of its
    chunk arrive. The `k` segments of a step occupy an interface for `k * t` seconds,
    `t = gap + size / (n * k * bandwidth)`, and a segment can leave the next device
    `t + d` after it began to leave the one before: `d` is the latency without the gap,
    and in the first `n - 1` steps the time to add it up. What is longer decides, so a
    step takes `max(k * t, t + d)`; after the last step began, `k * t + d` are left.
    With one segment this is `ring(n).seconds(...)`; with a few, latency and addition
    hide behind the bytes; with many, the gaps add up.

    Additions of different segments are assumed not to wait for each other.

    Source: the longest way through the grid of steps and segments; the bandwidth is
    that of Patarasuk and Yuan 2009 (see `lower_bound`).

    Raises:
        ScheduleError: If there is no device.
        CostError: If there is no segment, or the size is negative.
    """
    n = checked_devices(num_devices)
    if segments < 1:
        raise CostError(f"a chunk has at least 1 segment, not {segments}")
    chunk_bytes = _checked_size(size_bytes) / n
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


def choose_segments(
    size_bytes: int, num_devices: int, network: Network, at_most: int = 16
) -> int:
    """Returns in how many segments the ring shall send each chunk.

    The fewest of those that take the least time. That is about where a segment is
    through as the last one of its chunk leaves (`k * t = t + d` above).

    Args:
        size_bytes: Of the tensor.
        num_devices: Devices of the ring.
        network: What connects them.
        at_most: The most segments that may be chosen.

    Raises:
        ScheduleError: If there is no device.
        CostError: If `at_most` is less than 1, or the size is negative.
    """
    if at_most < 1:
        raise CostError(f"at_most is at least 1 segment, not {at_most}")
    return _first_least(
        {
            k: pipelined_ring_seconds(size_bytes, num_devices, network, k)
            for k in range(1, at_most + 1)
        }
    )


def seconds(
    algorithm: str, size_bytes: int, num_devices: int, network: Network
) -> float:
    """How long an algorithm takes; the ring in as many segments as are best for it.

    Raises:
        ScheduleError: If there is no such algorithm, or no device.
        CostError: If the size is negative.
    """
    if checked_algorithm(algorithm) == "ring":
        segments = choose_segments(size_bytes, num_devices, network)
        return pipelined_ring_seconds(size_bytes, num_devices, network, segments)
    return COSTS[algorithm](num_devices).seconds(size_bytes, network)


def choose(size_bytes: int, num_devices: int, network: Network) -> str:
    """Returns the name of the algorithm that takes the least time, or nearly that.

    Of those that are within `NEARLY` of the fastest, the first of `PREFERRED`; but not
    one that keeps shared processors longer than the fastest takes in all.

    Args:
        size_bytes: Of the tensor.
        num_devices: Devices that have one.
        network: What connects them.

    Raises:
        ScheduleError: If there is no device.
        CostError: If the size is negative.
    """
    times = {
        each: seconds(each, size_bytes, num_devices, network) for each in PREFERRED
    }
    fastest = min(times.values())
    wait_for_links = {
        each: taken
        for each, taken in times.items()
        if taken == fastest
        or COSTS[each](num_devices).processor_seconds(size_bytes, network) < fastest
    }
    return _first_least(wait_for_links, NEARLY)


def _first_least(seconds_of: Mapping[T, float], nearly: float = 1 + 1e-9) -> T:
    # Formulas that are equal on paper differ in their last bits.
    enough = min(seconds_of.values()) * nearly
    return next(each for each, taken in seconds_of.items() if taken <= enough)


def _checked_size(size_bytes: int) -> int:
    if size_bytes < 0:
        raise CostError(f"the size of a tensor is at least 0 bytes, not {size_bytes}")
    return size_bytes
