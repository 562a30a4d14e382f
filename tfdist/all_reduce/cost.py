"""Costs of all-reduce in steps, messages, bytes and seconds. Pure formulas.

A message between two devices takes `latency + bytes / bandwidth` seconds, and adding
up `b` bytes takes `b * seconds_per_reduced_byte`. This is the model, often written with
alpha, beta and gamma, of Chan, Heimlich, Purkayastha and van de Geijn, "Collective
communication: theory, practice, and experience", Concurrency and Computation: Practice
and Experience 19(13), 2007. A step ends when its slowest device is done.

All algorithms move `2(n - 1)` times the size of the tensor between `n` devices, and
none can do with less (`lower_bound`). They differ in the number of steps, and in how
evenly they load the interfaces.

>>> ring(4).steps, ring(4).busiest_link
(6, Fraction(3, 2))
>>> network = Network(latency=1e-3, bandwidth=25e6, seconds_per_reduced_byte=2e-10)
>>> round(ring(4).seconds(100_000_000, network), 3)
6.021
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from tfdist._support.errors import Error
from tfdist.all_reduce.schedule import checked_devices


class CostError(Error, ValueError):
    """A number that no network or tensor has: the message says which are allowed."""


@dataclass(frozen=True)
class Network:
    """The network of the devices. Each device has one full-duplex interface.

    Attributes:
        latency: Seconds that an empty message takes on an idle network.
        bandwidth: Bytes per second that an interface can send, and receive at the same
            time.
        seconds_per_reduced_byte: Seconds that a device takes to add one byte of a
            message to its own.
        seconds_per_message: The part of `latency` during which the interface is busy,
            so that the next message of the step has to wait (the gap of Culler et al.,
            "LogP: towards a realistic model of parallel computation", PPoPP 1993).
            None: the whole latency, as if an interface sent one message at a time,
            which is what Chan et al. assume.

    Raises:
        CostError: If a number is negative, the bandwidth is 0, or
            `seconds_per_message` exceeds the latency.
    """

    latency: float
    bandwidth: float
    seconds_per_reduced_byte: float
    seconds_per_message: float | None = None

    def __post_init__(self) -> None:
        # `not x > 0`, and not `x <= 0`, which NaN would pass.
        if not self.bandwidth > 0:
            raise CostError(f"bandwidth must be above 0 bytes/s, not {self.bandwidth}")
        for name in ("latency", "seconds_per_reduced_byte"):
            if not getattr(self, name) >= 0:
                raise CostError(
                    f"{name} must be at least 0 s, not {getattr(self, name)}"
                )
        if not 0 <= self.gap <= self.latency:
            raise CostError(
                "seconds_per_message must be between 0 and the latency, "
                f"{self.latency} s, not {self.seconds_per_message}"
            )

    @property
    def gap(self) -> float:
        """Seconds between two empty messages of one interface."""
        if self.seconds_per_message is None:
            return self.latency
        return self.seconds_per_message


@dataclass(frozen=True)
class Cost:
    """The cost of an all-reduce on any network. Sizes are multiples of the tensor's.

    A device sends another at most one message in a step.

    Attributes:
        steps: The number of consecutive steps.
        messages: The number of messages of all devices.
        busiest_messages: The number of messages that the busiest interface of a step
            sends or receives, whichever is more, added up over all steps.
        busiest_size: The size of those messages.
        busiest_link: The most that one interface sends or receives in all steps.
        reduced: The most that one device adds up in a step, added up over all steps.
        moved: The sum of all sizes that devices send.
    """

    steps: int
    messages: int
    busiest_messages: int
    # Exact, because the tests require each formula to equal its schedule's count.
    busiest_size: Fraction
    busiest_link: Fraction
    reduced: Fraction
    moved: Fraction

    def seconds(self, size_bytes: int, network: Network) -> float:
        """Returns how long the all-reduce takes for a tensor of `size_bytes`."""
        if size_bytes < 0:
            raise CostError(
                f"the size of a tensor must be at least 0 bytes, not {size_bytes}"
            )
        return (
            self.steps * network.latency
            # A step's first message takes the whole latency, each further one the gap.
            + (self.busiest_messages - self.steps) * network.gap
            + size_bytes * float(self.busiest_size) / network.bandwidth
            + size_bytes * float(self.reduced) * network.seconds_per_reduced_byte
        )


def lower_bound(num_devices: int) -> Fraction:
    """Returns the least that the busiest interface can send, per size of the tensor.

    `2(n - 1) / n`: all devices together send at least `2(n - 1)` sizes (Patarasuk and
    Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    Journal of Parallel and Distributed Computing 69(2), 2009).
    """
    n = checked_devices(num_devices)
    return Fraction(2 * (n - 1), n)


def ring(num_devices: int) -> Cost:
    """`2(n - 1)` steps of one message each, of size `1 / n`; half are added up.

    Source: Patarasuk and Yuan 2009 (see `lower_bound`), who show that no algorithm
    needs less bandwidth.
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
    """`n - 1` whole tensors go to one device, which adds them up; `n - 1` go back.

    Source: the model of Chan et al. 2007 (see the module), who reduce and broadcast
    along trees, as `tree` does; here the tree is a star.
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
    """`2 ceil(log2(n))` steps of one message each, a whole tensor; half are added up.

    Source: the minimum-spanning-tree algorithms of Chan et al. 2007 (see the module).
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
    """Two steps, with `n - 1` concurrent messages of size `1 / n` per interface.

    Source: the pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", International Journal of High
    Performance Computing Applications 19(1), 2005, which takes `n - 1` steps one after
    the other; here they are taken at once.
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
    """`2 log2(p)` steps of one message each: `1 / 2`, `1 / 4`, ... `1 / p`, and back.

    `p` is the largest power of two that is at most `n`. Each of the `n - p` extra
    devices first sends, and finally receives, one whole tensor.

    Source: Rabenseifner's algorithm in Thakur et al. 2005 (see `all_to_all`).
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
