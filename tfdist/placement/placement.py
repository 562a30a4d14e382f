"""Which ps a variable lives on. Pure decisions: nothing here imports TensorFlow.

A placement is any object with the one method of `Placement`. It is asked once a
variable, in the order of creation; optimizer slots are not asked for, since they
live beside the variable that they update.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tfdist.placement.partition import Partition


@dataclass(frozen=True)
class VariableSpec:
    """What is known of a variable before it is created.

    Attributes:
        name: The full name, for example `"cnn/dense/kernel"`.
        shape: The dimensions, all known.
        dtype: The name of the dtype, for example `"float32"`.
        itemsize: The size of one element, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def size_bytes(self) -> int:
        """The size of the variable's value, in bytes."""
        return math.prod(self.shape) * self.itemsize


def spec_of_operation(op: Any) -> VariableSpec:
    """Returns what the operation that makes a variable in a graph says of it.

    Raises:
        ValueError: If it makes no variable, or one whose shape is not known.
    """
    try:
        shape, dtype = op.get_attr("shape"), op.get_attr("dtype")
    except ValueError:
        shape = dtype = None
    if shape is None or shape.unknown_rank or any(d.size < 0 for d in shape.dim):
        raise ValueError(
            f"the size of {op.name}, an operation of type {op.type}, is not known before "
            "it is created: give GreedyLoadBalancing a load_fn of your own"
        )
    dimensions = tuple(int(dimension.size) for dimension in shape.dim)
    return VariableSpec(op.name, dimensions, dtype.name, dtype.size)


class Placement(Protocol):
    """Decides where variables live."""

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the index, from 0 to `num_ps - 1`, of the variable's ps."""
        ...


@runtime_checkable
class ShardPlacement(Placement, Protocol):
    """Decides where the shards of one variable live, with all of them in view."""

    def place_shards(self, shards: Sequence[VariableSpec], num_ps: int) -> list[int]:
        """Returns the index of each shard's ps."""
        ...


@runtime_checkable
class PartitioningPlacement(Placement, Protocol):
    """Decides, before a variable is placed, whether to split it."""

    def partition(self, variable: VariableSpec, num_ps: int) -> "Partition | None":
        """Returns how the variable is split, or None to have it placed whole."""
        ...

    def created(self, spec: VariableSpec, variable: Any) -> None:
        """Is told of each variable that was placed, when it has been created."""
        ...

    def check_slot(self, slot: VariableSpec, weight: Any) -> None:
        """Checks an optimizer slot before it is created beside its weight."""
        ...

    def check_complete(self, weights: Iterable[Any] = ()) -> None:
        """Checks, before the first step, that what was expected has been created.

        Args:
            weights: Of the model whose first step it is.
        """
        ...


class RoundRobin:
    """Deals variables out in turn, whatever their size: TensorFlow's own default.

    Cost: O(1) a variable. It bounds the number of variables on a ps, not their
    bytes: where large and small variables alternate, as kernels and biases do, the
    fullest ps can hold nearly everything (6.1 times the mean for VGG16 on 8 ps).
    """

    def __init__(self) -> None:
        self._placed = 0

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the ps after the one returned last."""
        index = self._placed % num_ps
        self._placed += 1
        return index


def byte_size_load_fn(variable: Any) -> float:
    """The load of a variable that is its size, in bytes.

    Has the semantics of TF1's `tf.contrib.training.byte_size_load_fn`.

    Args:
        variable: A `VariableSpec`, or the operation that makes it in a graph.

    Raises:
        ValueError: If the operation makes no variable of a known shape.
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

    Cost: O(num_ps log num_ps) a variable.

    >>> greedy = GreedyLoadBalancing()
    >>> sizes = [400, 100, 100, 300]
    >>> [greedy.place(VariableSpec("v", (n,), "uint8", 1), 2) for n in sizes]
    [0, 1, 1, 1]

    In graph mode it is called in TF1's way, with the operations that make variables:

        tf.compat.v1.train.replica_device_setter(
            cluster=cluster, ps_strategy=GreedyLoadBalancing(num_tasks=2)
        )

    Args:
        num_tasks: The number of ps; a call has to know it, `place` is told.
        load_fn: The load of what is placed, at least 0, in any unit: of a
            `VariableSpec`, and in a call of a `tf.Operation`.
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        load_fn: Callable[[Any], float] = byte_size_load_fn,
    ) -> None:
        if num_tasks is not None and not _is_count(num_tasks):
            raise TypeError(
                "num_tasks is the number of ps, a whole number from 1; received "
                f"{num_tasks!r}. A load function is given as load_fn="
            )
        if not callable(load_fn):
            raise TypeError(
                "load_fn is a function of a VariableSpec, or in TF1's form of an "
                f"operation, that returns its load; received {load_fn!r}"
            )
        self._load_fn = load_fn
        self._loads = [0.0] * (num_tasks or 0)

    def __call__(self, op: Any) -> int:
        """Returns the least-loaded ps and adds the operation's load to it.

        Raises:
            ValueError: If the number of ps is not known, or as `place` does.
        """
        if not self._loads:
            raise ValueError(
                "how many ps there are is not known: write "
                "tfdist.GreedyLoadBalancing(num_tasks=2) for two of them"
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

        Every `num_ps` shards go to as many ps, the largest to the least loaded, so that
        all ps share in serving the variable, even a small one after a large one. The
        fullest and the emptiest ps differ by no more for it than the largest piece:
        the bound above holds.

        Raises:
            ValueError: As `place` does.
        """
        if not self._loads:
            self._loads = [0.0] * num_ps
        if len(self._loads) != num_ps:
            raise ValueError(
                f"this GreedyLoadBalancing balances {len(self._loads)} ps and is "
                f"now asked for {num_ps}: make a new one for each cluster"
            )
        return self._place([self._load(shard) for shard in shards])

    def _place(self, loads: list[float]) -> list[int]:
        places, num_ps = [0] * len(loads), len(self._loads)
        for start in range(0, len(loads), num_ps):
            round_of = range(start, min(start + num_ps, len(loads)))
            largest_first = sorted(round_of, key=lambda i: -loads[i])
            emptiest_first = sorted(range(num_ps), key=self._loads.__getitem__)
            for i, ps in zip(largest_first, emptiest_first, strict=False):
                places[i] = ps
                self._loads[ps] += loads[i]
        return places

    def _load(self, variable: Any) -> float:
        load = float(self._load_fn(variable))
        if not 0 <= load < math.inf:
            raise ValueError(
                f"load_fn returned {load} for {variable}: a load is a finite number, "
                "at least 0"
            )
        return load


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_placement(placement: object) -> None:
    """Checks that an object can be asked where a variable lives.

    Raises:
        TypeError: If it has no method `place`, or is a class and not an object.
    """
    if isinstance(placement, type):
        raise TypeError(
            f"placement is an object, not a class: write {placement.__name__}() "
            f"for {placement.__name__}"
        )
    if not callable(getattr(placement, "place", None)):
        raise TypeError(
            "a placement has a method place(variable, num_ps) that returns the index "
            f"of a ps, as tfdist.GreedyLoadBalancing() has; received {placement!r}"
        )


def ps_for(placement: Placement, variable: VariableSpec, num_ps: int) -> int:
    """Asks a placement where a variable lives, and checks the answer.

    Raises:
        ValueError: If the answer is not the index of a ps.
    """
    return _checked(placement.place(variable, num_ps), placement, variable, num_ps)


def ps_of_shards(
    placement: Placement, shards: Sequence[VariableSpec], num_ps: int
) -> list[int]:
    """Asks a placement where the shards of one variable live, and checks the answer.

    One that is not a `ShardPlacement` is asked for each in order, as a variable.

    Raises:
        ValueError: If an answer is not the index of a ps.
    """
    if not isinstance(placement, ShardPlacement):
        return [ps_for(placement, shard, num_ps) for shard in shards]
    return [
        _checked(index, placement, shard, num_ps)
        for shard, index in zip(
            shards, placement.place_shards(shards, num_ps), strict=True
        )
    ]


def _checked(
    index: Any, placement: Placement, variable: VariableSpec, num_ps: int
) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        index_is_valid = False
    else:
        index = int(index.__index__())
        index_is_valid = 0 <= index < num_ps
    if not index_is_valid:
        raise ValueError(
            f"{type(placement).__name__}.place() returned {index!r} for "
            f"{variable.name}: it returns the index of a ps, 0 to {num_ps - 1}"
        )
    return index
