"""Plans where variables live so that no ps is overloaded.

Largest first: in order of decreasing size, each variable goes to the ps that holds
the least. Without splits, the fullest ps then holds at most `4/3 - 1/(3 num_ps)` times the
least possible (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal
on Applied Mathematics 17(2), 1969). A variable that would lift even that ps above
`target` times the mean is split: one shard fills the ps, and the rest of the variable
takes its turn among the others.

Bounds: every cut fills a ps, so there are fewer cuts than ps, and the fullest ps holds
at most `target` times the mean. Both hold up to the granularity of rows: a ps may stay
one row short of full, or exceed the target by one item that cannot be split.

A variable in the `mod` layout has even shards. A large one is placed before all others,
with one shard on every ps, and the others make up for the unevenness; these cuts,
`num_ps - 1` per variable, come on top.

Cost: O(n log n + n log num_ps) for n variables.
"""

from collections.abc import Sequence

import numpy as np

from tfdist.planning.arguments import TARGET, check_arguments
from tfdist.planning.assignment import Assignment, Items
from tfdist.planning.plan import Plan
from tfdist.planning.weight import PlannedVariable, Weight

# Cutting at the target leaves the fullest ps exactly there. Cutting closer to the mean
# often needs no more cuts; the closest is tried first.
SLACKS = (0.01, 0.1, 0.5)

# A variable whose share of traffic is above this many times its share of memory is
# placed by traffic.
BUSY = 2.0


def plan_variables(
    weights: Sequence[Weight],
    num_ps: int,
    *,
    balance: str = "memory",
    target: float = TARGET,
) -> Plan:
    """Plans where variables live.

    The most balanced of the plans with the fewest cuts found wins.

    >>> from tfdist.placement.variable_spec import VariableSpec
    >>> rows = (600, 100, 100)
    >>> weights = [Weight(VariableSpec(f"v{n}", (n,), "uint8", 1)) for n in rows]
    >>> plan = plan_variables(weights, 2)
    >>> plan.bytes_per_ps, plan.cuts
    ((400, 400), 1)

    Args:
        weights: The variables, in creation order.
        num_ps: The number of ps.
        balance: The quantity to balance. `"memory"`, the default, balances traffic only
            as far as memory allows without more cuts. `"traffic"` ignores memory.
            `"both"` spreads the large embeddings with known `lookups` over all ps, at
            `num_ps - 1` cuts each, and balances the rest by traffic.
        target: The imbalance to reach, above 1. Variables are split only as needed.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_arguments(num_ps, balance, target)
    items = _items(weights, num_ps, target)
    best = _assign(items, num_ps, balance, target, target)
    for slack in SLACKS:
        # The tightest attempt aims no lower than this.
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
    # Tolerates the rounding error of a sum of many fractions.
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
        # The others have about the same ratio of traffic to memory, so balancing their
        # traffic balances their memory too.
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
    # In units of the mean load of a ps. A smaller item always fits on the least loaded
    # ps, and splitting along an axis with coarser indices would waste too much slack.
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
    """Returns the axis to split, and its size.

    That is rows, as lookups in embeddings need, unless there are fewer than `least`.
    """
    shape = weight.spec.shape
    if shape[0] >= least:
        return 0, shape[0]
    axis = max(weight.axes, key=lambda each: shape[each])
    return axis, shape[axis]
