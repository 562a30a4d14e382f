"""Plans where variables live so that no ps is the hot one. Imports no TensorFlow.

The longest first: in order of decreasing size, each variable goes to the ps that holds
the least. Unsplit, the fullest ps then holds at most `4/3 - 1/(3 num_ps)` times the
least possible (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal
on Applied Mathematics 17(2), 1969). What does not fit under `target` times the mean
even on that ps is cut: one piece fills the ps, and what remains of the variable takes
its turn among the others.

Bounds: every cut fills a ps, so there are fewer cuts than ps, and the fullest ps holds
at most `target` times the mean. Both as far as rows are fine enough: a ps may be filled
but for one row, or exceed the target by one thing that cannot be cut.

A variable whose rows are dealt out one by one has even shards. One that is large gets a
shard on every ps, before all others, and the others make up for what is uneven; these
cuts, `num_ps - 1` each, come on top.

Cost: O(n log n + n log num_ps) for n variables.
"""

from collections.abc import Sequence

import numpy as np

from tfdist.planning.arguments import TARGET, check_arguments
from tfdist.planning.assignment import Assignment, Items
from tfdist.planning.plan import Plan, PlannedVariable, Weight

# Cutting at the target itself leaves the fullest ps just there. Cutting closer to the
# mean often needs no more cuts; the closest is tried first.
SLACKS = (0.01, 0.1, 0.5)

# A variable with so many times its share of memory in traffic is placed by traffic.
BUSY = 2.0


def plan_variables(
    weights: Sequence[Weight],
    num_ps: int,
    *,
    balance: str = "memory",
    target: float = TARGET,
) -> Plan:
    """Plans where variables live.

    Of the plans found with the fewest cuts, the most even one wins.

    >>> from tfdist.placement.variable_spec import VariableSpec
    >>> rows = (600, 100, 100)
    >>> weights = [Weight(VariableSpec(f"v{n}", (n,), "uint8", 1)) for n in rows]
    >>> plan = plan_variables(weights, 2)
    >>> plan.bytes_per_ps, plan.cuts
    ((400, 400), 1)

    Args:
        weights: The variables, in creation order.
        num_ps: The number of ps.
        balance: What reaches the target. With `"memory"`, the default, traffic is
            evened out only as far as memory allows without further cuts. With
            `"traffic"` memory is left as it comes. With `"both"` the large embeddings
            that `lookups` are known of are spread over all ps, at `num_ps - 1` cuts
            each, and the rest is balanced by traffic.
        target: The imbalance that is good enough, above 1: variables are split only
            as far as it needs.

    Raises:
        ValueError: If an argument is out of its range.
    """
    check_arguments(num_ps, balance, target)
    items = _items(weights, num_ps, target)
    best = _assign(items, num_ps, balance, target, target)
    for slack in SLACKS:
        if _fullest(best, balance) * num_ps <= 1 + SLACKS[0] * (target - 1):
            break
        tighter = _assign(items, num_ps, balance, 1 + slack * (target - 1), target)
        best = min(best, tighter, key=lambda a: (a.cuts, _fullest(a, balance)))
    variables = tuple(
        PlannedVariable(weight, home)
        for weight, home in zip(weights, best.homes(), strict=True)
    )
    return Plan(num_ps, variables, target, balance)


def _assign(
    items: Items, num_ps: int, balance: str, cut_at: float, target: float
) -> Assignment:
    # The sum of many parts may miss what it should be by their rounding.
    capacity, limit = (each / num_ps * (1 + 1e-12) for each in (cut_at, target))
    assignment = Assignment(items, num_ps)
    assignment.deal(items.dealt)
    everything = sorted({*range(len(items.memory))}.difference(items.dealt))
    if balance == "memory":
        busy = [i for i in everything if items.traffic[i] > BUSY * items.memory[i]]
        calm = [i for i in everything if items.traffic[i] <= BUSY * items.memory[i]]
        assignment.pour(calm, "memory", capacity)
        left = assignment.fill(busy, limit)
        assignment.pour(left, "memory", limit)
        return assignment
    rest: Sequence[int] = everything
    if balance == "both":
        # Each of the others has about as much traffic for its size as all of them.
        small = (target - 1) / 2
        spread = [i for i in items.looked_up if items.memory[i] * num_ps > small]
        assignment.spread(spread)
        rest = sorted({*everything}.difference(spread))
    assignment.pour(rest, "traffic", capacity)
    return assignment


def _fullest(assignment: Assignment, balance: str) -> float:
    kinds = {"memory": assignment.memory, "traffic": assignment.traffic}
    return max(max(kinds[kind]) for kind in kinds if balance in (kind, "both"))


def _items(weights: Sequence[Weight], num_ps: int, target: float) -> Items:
    memory = _parts([weight.memory for weight in weights])
    traffic = _parts([weight.traffic for weight in weights])
    loads = np.maximum(memory, traffic) * num_ps
    # In units of a mean ps. What is smaller always fits on the ps that holds the least,
    # and a cut along an axis of coarser indices would waste too much of the slack.
    coarse = (target - 1) / 4
    axes, looked_up, dealt = {}, [], []
    for i in np.flatnonzero(loads > coarse).tolist():
        weight = weights[i]
        if not weight.axes:
            continue
        axes[i] = _axis(weight, loads[i] / coarse)
        if weight.dealt:
            dealt.append(i)
        elif weight.lookups is not None:
            looked_up.append(i)
    return Items(memory.tolist(), traffic.tolist(), axes, looked_up, dealt)


def _parts(amounts: Sequence[int]) -> np.ndarray:
    array = np.array(amounts, np.float64)
    return array / (array.sum() or 1.0)


def _axis(weight: Weight, least: float) -> tuple[int, int]:
    """Returns the axis to cut, and its indices.

    Rows, as lookups in embeddings need them, unless there are fewer than `least`.
    """
    shape = weight.spec.shape
    if shape[0] >= least:
        return 0, shape[0]
    axis = max(weight.axes, key=lambda each: shape[each])
    return axis, shape[axis]
