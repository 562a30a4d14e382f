"""Placement by earliest finish time.

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task
scheduling for heterogeneous computing", IEEE Transactions on Parallel and Distributed
Systems 13(3), 2002, section 4.2 (HEFT). Here a backward computation follows its forward
computation to the same device, and calls of one layer follow the first.
"""

import math
from bisect import bisect_right

from tfdist.research.model_parallel.work import Assignment, Work

_NONE = -1


def place_by_finish_time(work: Work) -> Assignment:
    """Assigns each node, by decreasing upward rank, to the device that ends it first.

    A task may fill a gap between tasks that were placed before it. As in the paper, a
    tensor does not wait for other tensors on its link. A device without room for a unit
    is left out; if none has room, the one with the most room left gets it, and the
    assignment does not fit.

    Cost: O((n + e) devices) for n nodes and e edges, and a search for gaps.
    """
    return _Placing(work).run()


class _Placing:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._home = [_NONE] * len(work.graph.units)
        self._room = list(work.memories)
        self._ends = [0.0] * (2 * work.num_nodes)
        # Per device, when free time begins and ends; the last one does not end.
        self._begins = [[0.0] for _ in work.devices]
        self._closes = [[math.inf] for _ in work.devices]

    def run(self) -> Assignment:
        n = self._work.num_nodes
        up, down = self._work.ranks
        # Among equal ranks, of nodes that take no time, what is needed comes first.
        keys = [(-up[v], v) for v in range(n)]
        keys += [(-down[v], 2 * n - v) for v in range(n)]
        for task in sorted(range(2 * n), key=keys.__getitem__):
            self._place(task)
        return tuple(self._home)

    def _place(self, task: int) -> None:
        back, v = divmod(task, self._work.num_nodes)
        unit = self._work.unit_of[v]
        # Its forward task, or another call of the layer, has decided.
        if self._home[unit] != _NONE:
            devices = [self._home[unit]]
        else:
            size = self._work.unit_bytes[unit]
            devices = [d for d, room in enumerate(self._room) if size <= room]
            if not devices:
                # It does not fit, as `fits` will tell of the whole.
                devices = [max(range(len(self._room)), key=self._room.__getitem__)]
        seconds = self._work.seconds[back][v]
        finish, device, begin = min(
            self._finish(task, device, seconds / self._work.devices[device].speed)
            for device in devices
        )
        if self._home[unit] == _NONE:
            self._home[unit] = device
            self._room[device] -= self._work.unit_bytes[unit]
        self._ends[task] = finish
        self._take(device, begin, finish)

    def _finish(
        self, task: int, device: int, seconds: float
    ) -> tuple[float, int, float]:
        """Returns when a task would end on a device; the device; and when it begins."""
        there = self._inputs_there(task, device)
        closes = self._closes[device]
        for gap in range(bisect_right(closes, there), len(closes)):
            begin = max(there, self._begins[device][gap])
            if begin + seconds <= closes[gap]:
                break
        return begin + seconds, device, begin

    def _inputs_there(self, task: int, device: int) -> float:
        """Returns when all that a task needs would be on a device."""
        work, (back, v) = self._work, divmod(task, self._work.num_nodes)
        there = self._ends[v] if back else 0.0
        for at in (work.outputs if back else work.inputs)[v]:
            tensor = work.tensors[at]
            for other in tensor.trained if back else (tensor.source,):
                home = self._home[work.unit_of[other]]
                arrival = self._ends[back * work.num_nodes + other]
                if home != device:
                    per_byte, latency = work.rates[home][device]
                    arrival += latency + per_byte * tensor.size
                there = max(there, arrival)
        return there

    def _take(self, device: int, begin: float, end: float) -> None:
        """Takes time out of the free time of a device."""
        begins, closes = self._begins[device], self._closes[device]
        gap = bisect_right(begins, begin) - 1
        before, after = begins[gap], closes[gap]
        kept = [(a, b) for a, b in ((before, begin), (end, after)) if a < b]
        begins[gap : gap + 1] = [a for a, _ in kept]
        closes[gap : gap + 1] = [b for _, b in kept]
