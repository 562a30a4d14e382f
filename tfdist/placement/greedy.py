"""Greedy load balancing: each variable on the least loaded ps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.placement.variable_spec import VariableSpec, spec_of_operation


def byte_size_load_fn(variable: Any) -> float:
    """Returns the size of a variable in bytes, as its load.

    Has the semantics of TF1's `tf.contrib.training.byte_size_load_fn`.

    Args:
        variable: A `VariableSpec`, or the operation that creates it in a graph.

    Raises:
        ValueError: If the operation does not create a variable of a known shape.
    """
    if not isinstance(variable, VariableSpec):
        variable = spec_of_operation(variable)
    return float(variable.size_bytes)


class GreedyLoadBalancing:
    """Places each variable on the ps with the least load, the first on a tie.

    Has the semantics of TF1's `tf.contrib.training.GreedyLoadBalancingStrategy`.
    This is list scheduling: the fullest ps carries at most `2 - 1/num_ps` times the
    least possible (R. L. Graham, "Bounds for Certain Multiprocessing Anomalies",
    Bell System Technical Journal 45(9), 1966, theorem 1).

    Cost: O(num_ps log num_ps) per variable.

    >>> greedy = GreedyLoadBalancing()
    >>> sizes = [400, 100, 100, 300]
    >>> [greedy.place(VariableSpec("v", (n,), "uint8", 1), 2) for n in sizes]
    [0, 1, 1, 1]

    In graph mode it is called as in TF1, with the operations that create variables:

        tf.compat.v1.train.replica_device_setter(
            cluster=cluster, ps_strategy=GreedyLoadBalancing(num_tasks=2)
        )

    Args:
        num_tasks: The number of ps. Needed in graph mode only; `place` receives it.
        load_fn: Returns the load of a `VariableSpec`, or in graph mode of a
            `tf.Operation`: at least 0, in any unit.
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        load_fn: Callable[[Any], float] = byte_size_load_fn,
    ) -> None:
        if num_tasks is not None and not _is_count(num_tasks):
            raise TypeError(
                "num_tasks is the number of ps, a whole number from 1; received "
                f"{num_tasks!r}. Pass a load function as load_fn="
            )
        if not callable(load_fn):
            raise TypeError(
                "load_fn must be a function of a VariableSpec, or in TF1's form of an "
                f"operation, that returns its load; received {load_fn!r}"
            )
        self._load_fn = load_fn
        # Without `num_tasks`, the first `place` says how many ps there are.
        self._loads = [0.0] * (num_tasks or 0)

    def __call__(self, op: Any) -> int:
        """Returns the least-loaded ps and adds the operation's load to it.

        Raises:
            ValueError: If the number of ps is not known, or as `place` does.
        """
        if not self._loads:
            raise ValueError(
                "the number of ps is not known: write "
                "tfdist.GreedyLoadBalancing(num_tasks=2) for two ps"
            )
        return self._place([self._load(op)])[0]

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the least-loaded ps and adds the variable's load to it.

        Raises:
            ValueError: If the load is negative or not a number, or if earlier
                variables were placed on another number of ps.
        """
        return self.place_shards([variable], num_ps)[0]

    def place_shards(self, shards: Sequence[VariableSpec], num_ps: int) -> list[int]:
        """Returns the ps of each shard of one variable, in their order.

        Each group of `num_ps` shards goes to `num_ps` different ps, the largest to the
        least loaded, so that all ps serve the variable, even a small one after a large
        one. This adds at most the largest shard to the difference between the fullest
        and the emptiest ps, so the bound above holds.

        Raises:
            ValueError: As `place` does.
        """
        if not self._loads:
            self._loads = [0.0] * num_ps
        if len(self._loads) != num_ps:
            raise ValueError(
                f"this GreedyLoadBalancing balances {len(self._loads)} ps and was "
                f"now called for {num_ps}: create a new one for each cluster"
            )
        return self._place([self._load(shard) for shard in shards])

    def _place(self, loads: list[float]) -> list[int]:
        places, num_ps = [0] * len(loads), len(self._loads)
        for start in range(0, len(loads), num_ps):
            round_of = range(start, min(start + num_ps, len(loads)))
            largest_first = sorted(round_of, key=lambda i: -loads[i])
            # A stable sort: the first ps wins a tie, as with `np.argmin` in TF1.
            emptiest_first = sorted(range(num_ps), key=self._loads.__getitem__)
            # The last group may have fewer shards than there are ps.
            for i, ps in zip(largest_first, emptiest_first, strict=False):
                places[i] = ps
                self._loads[ps] += loads[i]
        return places

    def _load(self, variable: Any) -> float:
        load = float(self._load_fn(variable))
        # This form rejects NaN too, with which loads cannot be sorted.
        if not 0 <= load < math.inf:
            raise ValueError(
                f"load_fn returned {load} for {variable}: a load is a finite number, "
                "at least 0"
            )
        return load


class BestFit(GreedyLoadBalancing):
    """Places each variable where it does not raise the load of the fullest ps.

    Among the ps where it fits below the load of the fullest, it takes the one with the
    most load; if there is none, the least loaded, as `GreedyLoadBalancing` does. So small
    variables share a ps instead of spreading over all of them, and a step, which
    exchanges messages with every ps that it uses, exchanges fewer. On two ps, both place
    alike.

    The bound of `GreedyLoadBalancing` holds: the load of the fullest ps grows only when
    no ps has room, and then the least loaded one takes the variable. The rule is that of
    best-fit bin packing (D. S. Johnson, "Near-Optimal Bin Packing Algorithms", PhD
    thesis, MIT, 1973), with bins that grow when they must.

    Cost: O(num_ps log num_ps) per variable.

    >>> best_fit = BestFit()
    >>> sizes = [400, 10, 100, 1]
    >>> [best_fit.place(VariableSpec("v", (n,), "uint8", 1), 4) for n in sizes]
    [0, 1, 1, 1]

    Args:
        num_tasks: As of `GreedyLoadBalancing`.
        load_fn: As of `GreedyLoadBalancing`.
    """

    def _place(self, loads: list[float]) -> list[int]:
        # A variable is split so that several ps share its load.
        if len(loads) > 1:
            return super()._place(loads)
        (load,) = loads
        fullest = max(self._loads)
        with_room = [ps for ps, own in enumerate(self._loads) if own + load <= fullest]
        if not with_room:
            return super()._place(loads)
        ps = max(with_room, key=self._loads.__getitem__)
        self._loads[ps] += load
        return [ps]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
