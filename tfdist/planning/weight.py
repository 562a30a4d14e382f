"""A variable to place, and where a plan puts it."""

from dataclasses import dataclass

from tfdist.placement.partition import Partition
from tfdist.placement.variable_spec import VariableSpec


@dataclass(frozen=True)
class Weight:
    """A variable to place, and its properties that matter for that.

    Attributes:
        spec: The variable.
        slots: The names of the optimizer's slots, each of the variable's size, which
            live next to it, shard by shard.
        lookups: The number of rows of an embedding that a step looks up; None for a
            variable that moves whole.
        divisible: Whether it can be split over several ps.
        rows_only: Whether it can be split along the first axis only.
        dealt: Whether it is in the `mod` layout (`partition_strategy="mod"`), whose
            shards are even.
    """

    spec: VariableSpec
    slots: tuple[str, ...] = ()
    lookups: int | None = None
    divisible: bool = True
    rows_only: bool = False
    dealt: bool = False

    @property
    def memory(self) -> int:
        """The bytes of the variable and its slots."""
        return self.spec.size_bytes * (1 + len(self.slots))

    @property
    def traffic(self) -> int:
        """The bytes that a step moves: the value to the worker, and its update back.

        Slots do not move. Only the rows of an embedding that are looked up move, at
        most all of them.
        """
        if self.lookups is None or not self.spec.shape:
            return 2 * self.spec.size_bytes
        rows = max(1, self.spec.shape[0])
        return 2 * self.spec.size_bytes * min(self.lookups, rows) // rows

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that it can be split along."""
        if not self.divisible:
            return ()
        rows_only = self.rows_only or self.dealt
        lengths = self.spec.shape[:1] if rows_only else self.spec.shape
        return tuple(axis for axis, length in enumerate(lengths) if length > 1)

    def smallest_share(self, num_ps: int) -> float:
        """The least that the fullest ps can hold of the variable, from 0 to 1."""
        lengths = [self.spec.shape[axis] for axis in self.axes]
        return min((-(-n // num_ps) / n for n in lengths), default=1.0)


@dataclass(frozen=True)
class PlannedVariable:
    """A variable, and its ps or the ps of its shards."""

    weight: Weight
    home: int | Partition

    @property
    def spec(self) -> VariableSpec:
        """The variable."""
        return self.weight.spec

    @property
    def partition(self) -> Partition | None:
        """The shards; None if it is not split."""
        return self.home if isinstance(self.home, Partition) else None

    def shares(self) -> tuple[tuple[int, float], ...]:
        """The ps of each shard, and the fraction of the variable there, from 0 to 1."""
        if isinstance(self.home, int):
            return ((self.home, 1.0),)
        whole = self.home.bounds[-1].stop
        return tuple((shard.ps, shard.size / whole) for shard in self.home.bounds)
