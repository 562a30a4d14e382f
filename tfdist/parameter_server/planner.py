"""Plans where variables live so that no ps is the hot one. Imports no TensorFlow.

The longest first: in order of decreasing load, each variable goes to the least loaded
ps. Unsplit, the fullest ps then carries at most `4/3 - 1/(3 num_ps)` times the least
possible (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on
Applied Mathematics 17(2), 1969). What does not fit under `target` times the mean even
on the least loaded ps is cut: one piece fills that ps, and what remains of the variable
takes its turn among the others.

Bounds: every cut fills a ps, so there are at most `num_ps - 1` of them, and the fullest
ps carries at most `target` times the mean. Both hold as far as rows are fine enough: a
ps may be filled but for one row, or exceed the target by one thing that cannot be cut.

Cost: O(n log n + n log num_ps) for n variables.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfdist.parameter_server.partition import Partition, Shard
from tfdist.parameter_server.plan import Plan, PlannedVariable, Weight

TARGET = 1.02
"""The default of the imbalance to reach: bytes on the fullest ps over their mean."""

# A cut wastes up to one index of the axis; more than this of a mean ps is coarse.
COARSE = 0.005

# Cutting at the target itself leaves the fullest ps just there. Cutting closer to the
# mean often needs no more cuts; the closest is tried first.
SLACKS = (0.01, 0.1, 0.5)


@dataclass(frozen=True)
class _Items:
    """What to place: loads as parts of the whole, traffic in bytes a step.

    Attributes:
        loads: Of each item.
        traffic: Of each item.
        axes: Of the items large enough to be cut: the axis, and its indices.
    """

    loads: list[float]
    traffic: list[float]
    axes: dict[int, tuple[int, int]]


@dataclass(frozen=True)
class _Assignment:
    """The ps of what is whole, the shards of what is not, and the load of each ps."""

    homes: list[int]
    shards: dict[int, list[Shard]]
    loads: list[float]

    @property
    def cuts(self) -> int:
        return sum(len(shards) - 1 for shards in self.shards.values())


def plan_variables(
    weights: Sequence[Weight],
    num_ps: int,
    *,
    traffic_weight: float = 0.0,
    target: float = TARGET,
) -> Plan:
    """Plans where variables live.

    The load that is balanced is `(1 - traffic_weight)` times the part of all memory and
    `traffic_weight` times the part of all traffic. On a tie of the load, the ps with
    the least traffic is chosen. Among plans that cut as little, the most even one
    that is found wins.

    >>> from tfdist.parameter_server.placement import VariableSpec
    >>> rows = (600, 100, 100)
    >>> weights = [Weight(VariableSpec(f"v{n}", (n,), "uint8", 1)) for n in rows]
    >>> plan = plan_variables(weights, 2)
    >>> plan.bytes_per_ps, plan.cuts
    ((400, 400), 1)

    Args:
        weights: The variables, in creation order.
        num_ps: The number of ps.
        traffic_weight: From 0, balance memory alone, to 1, traffic alone.
        target: The imbalance that is good enough, above 1: variables are split only
            as far as it needs.

    Raises:
        ValueError: If an argument is out of its range.
    """
    check_arguments(num_ps, traffic_weight, target)
    items = _items(weights, num_ps, traffic_weight)
    best = _assign(items, num_ps, target)
    for slack in SLACKS:
        if max(best.loads) * num_ps <= 1 + SLACKS[0] * (target - 1):
            break
        tighter = _assign(items, num_ps, 1 + slack * (target - 1))
        best = min(best, tighter, key=lambda each: (each.cuts, max(each.loads)))
    variables = tuple(
        PlannedVariable(weight, home)
        for weight, home in zip(weights, best.homes, strict=True)
    )
    if best.shards:
        split = list(variables)
        for i, shards in best.shards.items():
            split[i] = PlannedVariable(weights[i], _home(items.axes[i][0], shards))
        variables = tuple(split)
    return Plan(num_ps, variables, target, traffic_weight)


def _items(weights: Sequence[Weight], num_ps: int, traffic_weight: float) -> _Items:
    memory = np.array([weight.memory for weight in weights], np.float64)
    traffic = np.array([weight.traffic for weight in weights], np.float64)
    loads = (1 - traffic_weight) * _parts(memory) + traffic_weight * _parts(traffic)
    axes = {}
    for i in np.flatnonzero(loads * num_ps > COARSE).tolist():
        shape = weights[i].spec.shape
        if weights[i].divisible and max(shape, default=1) > 1:
            axes[i] = _axis(shape, loads[i] * num_ps)
    return _Items(loads.tolist(), traffic.tolist(), axes)


def _parts(amounts: np.ndarray) -> np.ndarray:
    total = amounts.sum()
    return amounts / total if total else amounts


def _axis(shape: tuple[int, ...], load: float) -> tuple[int, int]:
    """Returns the axis to cut, and its indices, of a load in units of a mean ps.

    Rows, as lookups in embeddings need them, unless there are too few.
    """
    if load / max(1, shape[0]) <= COARSE:
        return 0, shape[0]
    axis = max(range(len(shape)), key=lambda each: shape[each])
    return axis, shape[axis]


def _assign(items: _Items, num_ps: int, target: float) -> _Assignment:
    capacity = target / num_ps * (1 + 1e-12)
    # The heads of both queues are the next largest. What remains of an item that was
    # cut: its load, negative, its number, and the first index that remains.
    whole = np.lexsort((np.negative(items.traffic), np.negative(items.loads))).tolist()
    whole.reverse()
    remainders: list[tuple[float, int, int]] = []
    # Of each ps: its load, its traffic, its index. The least loaded is the head.
    ps_heap = [(0.0, 0.0, ps) for ps in range(num_ps)]
    homes = [0] * len(items.loads)
    shards: dict[int, list[Shard]] = {}
    while whole or remainders:
        start = 0
        if not whole or (remainders and -remainders[0][0] > items.loads[whole[-1]]):
            _, i, start = heapq.heappop(remainders)
        else:
            i = whole.pop()
        load, traffic, ps = ps_heap[0]
        added, moved = items.loads[i], items.traffic[i]
        if start or (load + added > capacity and i in items.axes):
            indices = items.axes[i][1]
            count = indices - start
            fitting = math.floor((capacity - load) / added * indices)
            count = min(max(1, fitting), count)
            stop = start + count
            if stop < indices:
                left = added * (indices - stop) / indices
                heapq.heappush(remainders, (-left, i, stop))
            shards.setdefault(i, []).append(Shard(ps, start, stop))
            added, moved = added * count / indices, moved * count / indices
        else:
            homes[i] = ps
        heapq.heapreplace(ps_heap, (load + added, traffic + moved, ps))
    loads = [0.0] * num_ps
    for load, _, ps in ps_heap:
        loads[ps] = load
    return _Assignment(homes, shards, loads)


def _home(axis: int, shards: Sequence[Shard]) -> int | Partition:
    """Returns where shards live, neighbours on the same ps as one."""
    joined = [shards[0]]
    for shard in shards[1:]:
        if shard.ps == joined[-1].ps:
            joined[-1] = Shard(shard.ps, joined[-1].start, shard.stop)
        else:
            joined.append(shard)
    return Partition(axis, tuple(joined)) if len(joined) > 1 else joined[0].ps


def check_arguments(num_ps: int, traffic_weight: float, target: float) -> None:
    """Checks the arguments of a plan before its model is built.

    Raises:
        ValueError: If one is out of its range.
    """
    if isinstance(num_ps, bool) or not isinstance(num_ps, int) or num_ps < 1:
        raise ValueError(f"num_ps is a number of ps, at least 1; received {num_ps!r}")
    if not 0 <= traffic_weight <= 1:
        raise ValueError(
            "traffic_weight is from 0 (balance memory) to 1 (balance traffic); "
            f"received {traffic_weight!r}"
        )
    if not 1 < target < math.inf:
        raise ValueError(
            "target is an imbalance above 1, for example 1.02, that is 2% above the "
            f"mean; received {target!r}"
        )
