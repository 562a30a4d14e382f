"""The protocols of a placement, TensorFlow's default, and the checks of its answers.

A placement is any object with the one method of `Placement`. It is asked once per
variable, in creation order. It is not asked about optimizer slots, which live on the ps
of the variable that they update.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tfdist.placement.variable_spec import VariableSpec

if TYPE_CHECKING:
    from tfdist.placement.partition import Partition


class Placement(Protocol):
    """Decides where variables live."""

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the index, from 0 to `num_ps - 1`, of the variable's ps."""


@runtime_checkable
class ShardPlacement(Placement, Protocol):
    """Decides where the shards of one variable live, with all of them in view."""

    def place_shards(self, shards: Sequence[VariableSpec], num_ps: int) -> list[int]:
        """Returns the index of each shard's ps."""


@runtime_checkable
class PartitioningPlacement(Placement, Protocol):
    """Decides, before a variable is placed, whether to split it."""

    def partition(self, variable: VariableSpec, num_ps: int) -> "Partition | None":
        """Returns how the variable is split, or None to place it whole."""

    def created(self, spec: VariableSpec, variable: Any) -> None:
        """Notes a variable that has been created where it was placed."""

    def check_slot(self, slot: VariableSpec, weight: Any) -> None:
        """Checks an optimizer slot before it is created next to its weight."""

    def check_complete(self, weights: Iterable[Any] = ()) -> None:
        """Checks before a model's first step that all variables were created."""


class RoundRobin:
    """Places variables on the ps in turn, regardless of their size: TensorFlow's default.

    Cost: O(1) per variable. It bounds the number of variables on a ps, not their
    bytes: where large and small variables alternate, as kernels and biases do, the
    fullest ps can hold nearly everything (6.1 times the mean for VGG16 on 8 ps).
    """

    def __init__(self) -> None:
        self._placed = 0

    def place(self, variable: VariableSpec, num_ps: int) -> int:
        """Returns the next ps in turn."""
        index = self._placed % num_ps
        self._placed += 1
        return index


def check_placement(placement: object) -> None:
    """Checks that an object is a placement: a TypeError if not."""
    # A class has the attribute `place` too, and would pass the check below.
    if isinstance(placement, type):
        raise TypeError(
            f"placement must be an object, not a class: write {placement.__name__}() "
            f"for {placement.__name__}"
        )
    if not callable(getattr(placement, "place", None)):
        raise TypeError(
            "a placement has a method place(variable, num_ps) that returns the index "
            f"of a ps, as tfdist.GreedyLoadBalancing() has; received {placement!r}"
        )


def ps_for(placement: Placement, variable: VariableSpec, num_ps: int) -> int:
    """Asks a placement where a variable lives; a ValueError if that is no ps."""
    return _checked(placement.place(variable, num_ps), placement, variable, num_ps)


def ps_of_shards(
    placement: Placement, shards: Sequence[VariableSpec], num_ps: int
) -> list[int]:
    """Asks a placement where the shards of one variable live, and checks the answer.

    A placement without `place_shards` is asked about each shard in order.
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
    # `__index__` admits NumPy integers, such as the result of `np.argmin`. A bool
    # has it too, but is more likely a mistake than ps 0 or 1.
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
