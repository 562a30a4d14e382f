"""Schedules of all-reduce as plain data: transfers of chunks, step by step.

Every device has a tensor of the same shape, and finally each has the sum of all. A
schedule splits the tensor into chunks, and says which transfers happen in which step.
Each chunk is summed on its way to one device, its *owner*, and copied from there, so
all devices end bit-identical.

`tfdist.all_reduce.cost` says what schedules cost.

>>> for transfer in ring(2).transfers:
...     print(*transfer)
0 0 1 1 True
0 1 0 0 True
1 0 1 0 False
1 1 0 1 False
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from tfdist._support.errors import Error


class ScheduleError(Error, ValueError):
    """A schedule that does not exist: the message lists those that do."""


class Transfer(NamedTuple):
    """One chunk that is sent from one device to another.

    Attributes:
        step: The step. The transfers of a step happen at the same time, each with what
            its sender held when the step began.
        sender: The index of the device that sends.
        receiver: The index of the device that receives.
        chunk: The index of the chunk.
        reduces: Whether the receiver adds the chunk to its own or replaces its own.
    """

    step: int
    sender: int
    receiver: int
    chunk: int
    reduces: bool


@dataclass(frozen=True)
class TransferSchedule:
    """The transfers of one all-reduce.

    In one step, no device receives a chunk that it also sends. A device that receives
    the same chunk from several others in one step adds them in the order of `transfers`.

    Attributes:
        algorithm: The algorithm's name in `SCHEDULES`.
        num_devices: The number of devices.
        num_chunks: The number of chunks of (nearly) equal size.
        transfers: The transfers, sorted by step, then by sender.
    """

    algorithm: str
    num_devices: int
    num_chunks: int
    transfers: tuple[Transfer, ...]

    @property
    def steps(self) -> tuple[tuple[Transfer, ...], ...]:
        """The transfers, step by step."""
        return tuple(
            tuple(step) for _, step in groupby(self.transfers, attrgetter("step"))
        )

    @property
    def num_steps(self) -> int:
        """The number of steps; 0 for one device."""
        return self.transfers[-1].step + 1 if self.transfers else 0

    def owner(self, chunk: int) -> int:
        """Returns the device that computes a chunk's final sum."""
        if not 0 <= chunk < self.num_chunks:
            raise ScheduleError(
                f"chunk must be one of the {self.num_chunks} that {self.algorithm} has for "
                f"{self.num_devices} devices, counted from 0; received {chunk}"
            )
        for transfer in reversed(self.transfers):
            if transfer.chunk == chunk and transfer.reduces:
                return transfer.receiver
        # A single device has the sum without any transfer.
        return 0

    def sent(self, device: int) -> Fraction:
        """Returns the size that a device sends, relative to the tensor's size."""
        return self._size(each.sender == device for each in self.transfers)

    def received(self, device: int) -> Fraction:
        """Returns the size that a device receives, relative to the tensor's size."""
        return self._size(each.receiver == device for each in self.transfers)

    @property
    def busiest_sent(self) -> Fraction:
        """The most that any device sends, as a multiple of the tensor's size."""
        return max(map(self.sent, range(self.num_devices)))

    @property
    def busiest_received(self) -> Fraction:
        """The most that any device receives, as a multiple of the tensor's size."""
        return max(map(self.received, range(self.num_devices)))

    @property
    def links(self) -> dict[tuple[int, int], Fraction]:
        """Sizes sent on each (sender, receiver) link, relative to the tensor's size."""
        chunks = Counter((each.sender, each.receiver) for each in self.transfers)
        return {link: Fraction(n, self.num_chunks) for link, n in chunks.items()}

    def _size(self, counted: Iterable[bool]) -> Fraction:
        return Fraction(sum(counted), self.num_chunks)


def ring(num_devices: int) -> TransferSchedule:
    """Every device sends only to the next: a reduce-scatter, then an all-gather.

    `n` chunks, `2(n - 1)` steps. The sum of a chunk grows along the ring until it
    reaches the chunk's owner. It then travels once around the ring.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", Journal of Parallel and Distributed Computing 69(2), 2009.
    """
    n = checked_devices(num_devices)
    return _schedule(
        "ring",
        n,
        n,
        (
            # The `- 1` makes device d the owner of chunk d, as in `all_to_all`.
            Transfer(step, d, (d + 1) % n, (d - 1 - step) % n, step < n - 1)
            for step in range(2 * (n - 1))
            for d in range(n)
        ),
    )


def reduce_then_broadcast(num_devices: int) -> TransferSchedule:
    """All devices send to device 0, which sends the sum to all: a star.

    One chunk, two steps.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication:
    theory, practice, and experience", Concurrency and Computation: Practice and
    Experience 19(13), 2007 (reduce, then broadcast; there along trees).
    """
    n = checked_devices(num_devices)
    reductions = [Transfer(0, d, 0, 0, True) for d in range(1, n)]
    return _schedule("reduce_then_broadcast", n, 1, _there_and_back(reductions))


def tree(num_devices: int) -> TransferSchedule:
    """Sums pairs of devices, then pairs of pairs, and so on, and copies back: a tree.

    One chunk, `2 ceil(log2(n))` steps, a binomial tree with device 0 as its root. It has
    as few messages as the star, and the root takes part in only `2 ceil(log2(n))`.

    Source: the minimum-spanning-tree reduce and broadcast in Chan et al. 2007 (see
    `reduce_then_broadcast`).
    """
    n = checked_devices(num_devices)
    distances = [1 << exponent for exponent in range((n - 1).bit_length())]
    reductions = [
        Transfer(step, d, d - distance, 0, True)
        for step, distance in enumerate(distances)
        for d in range(distance, n, 2 * distance)
    ]
    return _schedule("tree", n, 1, _there_and_back(reductions))


def all_to_all(num_devices: int) -> TransferSchedule:
    """Every device owns a chunk, receives it from all others, and sends them the sum.

    `n` chunks, two steps.

    Source: the pairwise exchange in Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", International Journal of High
    Performance Computing Applications 19(1), 2005, all pairs in one step.
    """
    n = checked_devices(num_devices)
    reductions = [
        Transfer(0, d, owner, owner, True)
        for d in range(n)
        for owner in range(n)
        if d != owner
    ]
    return _schedule("all_to_all", n, n, _there_and_back(reductions))


def halving_doubling(num_devices: int) -> TransferSchedule:
    """Exchanges halves between pairs, then quarters, and so on, and copies back.

    `p` chunks and `2 log2(p)` steps, where `p` is the largest power of two that is at
    most `n`. If `n` exceeds `p`, each extra device first sends its whole tensor to one of
    the first `p`, and finally receives the whole sum: two more steps.

    Source: Rabenseifner's algorithm, in Thakur, Rabenseifner and Gropp, "Optimization
    of collective communication operations in MPICH", International Journal of High
    Performance Computing Applications 19(1), 2005.
    """
    n = checked_devices(num_devices)
    p = 1 << (n.bit_length() - 1)
    reductions = [
        Transfer(0, extra, extra - p, chunk, True)
        for extra in range(p, n)
        for chunk in range(p)
    ]
    distance = p // 2
    step = int(n > p)
    while distance:
        for d in range(p):
            peer = d ^ distance
            # The half of the chunks that both still sum with the peer's own number.
            first = peer - peer % distance
            reductions += [
                Transfer(step, d, peer, chunk, True)
                for chunk in range(first, first + distance)
            ]
        distance //= 2
        step += 1
    return _schedule("halving_doubling", n, p, _there_and_back(reductions))


SCHEDULES: Mapping[str, Callable[[int], TransferSchedule]] = MappingProxyType(
    {
        "ring": ring,
        "reduce_then_broadcast": reduce_then_broadcast,
        "tree": tree,
        "all_to_all": all_to_all,
        "halving_doubling": halving_doubling,
    }
)


def build(algorithm: str, num_devices: int) -> TransferSchedule:
    """Returns the schedule of an algorithm, by its name in `SCHEDULES`."""
    checked_algorithm(algorithm)
    return SCHEDULES[algorithm](num_devices)


def checked_algorithm(algorithm: str) -> str:
    """Returns the name of an existing algorithm."""
    if algorithm not in SCHEDULES:
        raise ScheduleError(
            f"algorithm must be one of {', '.join(map(repr, SCHEDULES))}; received "
            f"{algorithm!r}"
        )
    return algorithm


def checked_devices(num_devices: int) -> int:
    """Returns a valid number of devices."""
    if num_devices < 1:
        raise ScheduleError(
            f"an all-reduce needs at least 1 device; received {num_devices}"
        )
    return num_devices


def _there_and_back(reductions: list[Transfer]) -> Iterable[Transfer]:
    """Yields reductions, then copies of the sums along the same links, backwards."""
    yield from reductions
    last = 2 * max((each.step for each in reductions), default=0) + 1
    # The mirror image in time: what came in the last step goes back in the first one.
    for step, sender, receiver, chunk, _ in reductions:
        yield Transfer(last - step, receiver, sender, chunk, False)


def _schedule(
    algorithm: str, num_devices: int, num_chunks: int, transfers: Iterable[Transfer]
) -> TransferSchedule:
    # Sorted, because `steps` groups neighbors, and because the order of the transfers
    # is the order of the additions.
    return TransferSchedule(
        algorithm, num_devices, num_chunks, tuple(sorted(transfers))
    )
