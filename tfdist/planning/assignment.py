"""Assigns items with two loads, memory and traffic, to ps."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist.placement.partition import Partition, Shard


@dataclass(frozen=True)
class Items:
    """The items to place, with loads as fractions of the total.

    `axes` has the axis to split and its size, for each item that is large enough. Among
    these, `looked_up` are the items whose traffic is a few rows, and `dealt`
    those in the `mod` layout: even shards, one per ps.
    """

    memory: list[float]
    traffic: list[float]
    axes: dict[int, tuple[int, int]]
    looked_up: list[int]
    dealt: list[int]


class Assignment:
    """The ps of each item or shard, built up by several calls of `pour`.

    `memory` and `traffic` are the fractions of all load that are on each ps.
    """

    def __init__(self, items: Items, num_ps: int) -> None:
        self.memory = [0.0] * num_ps
        self.traffic = [0.0] * num_ps
        self._items = items
        self._homes = [0] * len(items.memory)
        self._shards: dict[int, list[Shard]] = {}

    @property
    def cuts(self) -> int:
        """The number of shards beyond one per item."""
        return sum(len(shards) - 1 for shards in self._shards.values())

    def homes(self) -> list[int | Partition]:
        """Returns where each item lives."""
        homes: list[int | Partition] = [*self._homes]
        for i, shards in self._shards.items():
            homes[i] = _home(self._items.axes[i][0], shards)
        return homes

    def spread(self, chosen: Iterable[int]) -> None:
        """Spreads each of these items evenly over all ps."""
        num_ps = len(self.memory)
        for i in chosen:
            indices = self._items.axes[i][1]
            edges = [indices * ps // num_ps for ps in range(num_ps + 1)]
            for ps, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
                # If an axis is shorter than the number of ps, some ps get nothing.
                if stop > start:
                    self._cut(i, ps, start, stop)

    def deal(self, chosen: Iterable[int]) -> None:
        """Splits each of these items in the `mod` layout, one shard per ps.

        Shard sizes differ by at most one index. The larger shards come first, and go
        to the ps with the least memory in use.
        """
        items, num_ps = self._items, len(self.memory)
        # Largest first: the smaller ones then even out what the larger leave uneven.
        for i in sorted(chosen, key=lambda each: -items.memory[each]):
            indices, start = items.axes[i][1], 0
            emptiest_first = sorted(range(num_ps), key=self.memory.__getitem__)
            for shard, ps in enumerate(emptiest_first[:indices]):
                # `tfdist.variables.shard_layout.ShardLayout` accepts only these sizes.
                stop = start + len(range(shard, indices, min(num_ps, indices)))
                self._cut(i, ps, start, stop)
                start = stop

    def pour(self, chosen: Sequence[int], kind: str, capacity: float) -> None:
        """Puts each item on the least loaded ps, and splits it if it does not fit.

        `kind` is the load to balance, `"memory"` or `"traffic"`, and `capacity` how
        much of it a ps can hold. Cost: O(n log n + n log num_ps), and fewer than num_ps
        cuts.
        """
        items = self._items
        loads, other_loads = items.memory, items.traffic
        levels, other_levels = self.memory, self.traffic
        if kind == "traffic":
            loads, other_loads = other_loads, loads
            levels, other_levels = other_levels, levels
        # The largest is last in `whole` and first in `remainders`, a heap of what is
        # left of split items: (-load, item, first index left). heapq keeps the
        # smallest first, so loads are negated.
        whole = _by_size(chosen, loads, items.traffic)
        remainders: list[tuple[float, int, int]] = []
        # Among equally loaded ps, the one with less of the other load comes first.
        heap = [(levels[ps], other_levels[ps], ps) for ps in range(len(levels))]
        heapq.heapify(heap)
        while whole or remainders:
            start = 0
            if not whole or (remainders and -remainders[0][0] > loads[whole[-1]]):
                _, i, start = heapq.heappop(remainders)
            else:
                i = whole.pop()
            level, _, ps = heap[0]
            load = loads[i]
            # The rest of a split item is a shard even where all of it fits.
            if start or (level + load > capacity and i in items.axes):
                indices = items.axes[i][1]
                fitting = math.floor((capacity - level) / load * indices)
                # A full ps still takes one index, or the loop would never end.
                stop = start + min(max(1, fitting), indices - start)
                if stop < indices:
                    left = load * (indices - stop) / indices
                    heapq.heappush(remainders, (-left, i, stop))
                self._cut(i, ps, start, stop)
            else:
                # Nearly all items take this branch, so it calls no function.
                self._homes[i] = ps
                levels[ps] = level + load
                other_levels[ps] += other_loads[i]
            heapq.heapreplace(heap, (levels[ps], other_levels[ps], ps))

    def fill(self, chosen: Sequence[int], capacity: float) -> list[int]:
        """Puts each item on the ps with the least traffic, as far as memory allows.

        Returns the items that no ps has the memory for.
        """
        items = self._items
        heap = [(traffic, ps) for ps, traffic in enumerate(self.traffic)]
        heapq.heapify(heap)
        left = []
        for i in reversed(_by_size(chosen, items.traffic, items.memory)):
            while heap and self.memory[heap[0][1]] + items.memory[i] > capacity:
                heapq.heappop(heap)
            if not heap:
                left.append(i)
                continue
            ps = heap[0][1]
            self._homes[i] = ps
            self.memory[ps] += items.memory[i]
            self.traffic[ps] += items.traffic[i]
            heapq.heapreplace(heap, (self.traffic[ps], ps))
        return left

    def _cut(self, i: int, ps: int, start: int, stop: int) -> None:
        self._shards.setdefault(i, []).append(Shard(ps, start, stop))
        part = (stop - start) / self._items.axes[i][1]
        self.memory[ps] += self._items.memory[i] * part
        self.traffic[ps] += self._items.traffic[i] * part


def _by_size(
    chosen: Sequence[int], loads: Sequence[float], ties: Sequence[float]
) -> list[int]:
    """Sorts items in ascending order; among equals the first comes last."""
    # `np.lexsort` is stable, so reversed equals stay reversed, and `pop` takes the
    # first.
    first_last = np.array(chosen, np.int64)[::-1]
    keys = (np.array(each)[first_last] for each in (ties, loads))
    order: list[int] = first_last[np.lexsort(tuple(keys))].tolist()
    return order


def _home(axis: int, shards: Sequence[Shard]) -> int | Partition:
    """Returns where shards live; joins neighbours on the same ps."""
    joined = [shards[0]]
    for shard in shards[1:]:
        if shard.ps == joined[-1].ps:
            joined[-1] = Shard(shard.ps, joined[-1].start, shard.stop)
        else:
            joined.append(shard)
    return Partition(axis, tuple(joined)) if len(joined) > 1 else joined[0].ps
