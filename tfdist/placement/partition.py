"""Partitions of one variable over several ps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tfdist._support.errors import Error
from tfdist.placement.variable_spec import VariableSpec


class PartitionError(Error, ValueError):
    """A partition that is invalid, or does not fit its variable."""


class Shard(NamedTuple):
    """The indices from `start` (inclusive) to `stop` (exclusive), and their ps."""

    ps: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of indices."""
        return self.stop - self.start


def even_sizes(total: int, count: int) -> list[int]:
    """Returns the sizes of shards as even as possible; the first may have one more.

    >>> even_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(total, count)
    return [size + (shard < larger) for shard in range(count)]


@dataclass(frozen=True)
class Partition:
    """The contiguous shards of a variable along one axis, of any sizes.

    >>> Partition.of_sizes(0, sizes=(3, 2), ps=(1, 0)).bounds
    (Shard(ps=1, start=0, stop=3), Shard(ps=0, start=3, stop=5))

    Attributes:
        axis: The axis that is split: 0 for rows.
        bounds: The shards in order; together they cover the axis exactly once.
            Several shards may live on the same ps.

    Raises:
        PartitionError: If a shard is empty, or does not start where the last one stops.
    """

    axis: int
    bounds: tuple[Shard, ...]

    def __post_init__(self) -> None:
        # Callers may pass NumPy integers, which JSON cannot store.
        bounds = tuple(Shard(*map(int, bound)) for bound in self.bounds)
        object.__setattr__(self, "bounds", bounds)
        if not bounds or self.axis < 0:
            raise PartitionError(
                "a partition has an axis from 0 and at least one shard; received "
                f"axis {self.axis} and {len(bounds)} shards"
            )
        covered = 0
        for i, shard in enumerate(bounds):
            if shard.start != covered or shard.size < 1:
                raise PartitionError(
                    f"shard {i} is [{shard.start}, {shard.stop}): it begins at "
                    f"{covered}, where the one before it ends, and is not empty"
                )
            covered = shard.stop

    @classmethod
    def of_sizes(
        cls, axis: int, sizes: Iterable[int], ps: Iterable[int]
    ) -> "Partition":
        """Returns the partition whose i-th shard has `sizes[i]` and lives on `ps[i]`.

        Raises:
            PartitionError: If the numbers of ps and sizes differ, or a size is
                below 1.
        """
        # Either may be an iterator, which can be read only once.
        sizes, ps = tuple(sizes), tuple(ps)
        if len(sizes) != len(ps):
            raise PartitionError(f"{len(sizes)} shards are on {len(ps)} ps: {ps}")
        bounds, start = [], 0
        for index, size in zip(ps, sizes, strict=True):
            bounds.append(Shard(index, start, start + size))
            start += size
        return cls(axis, tuple(bounds))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of indices of each shard."""
        return tuple(shard.size for shard in self.bounds)

    @property
    def ps(self) -> tuple[int, ...]:
        """The index of each shard's ps."""
        return tuple(shard.ps for shard in self.bounds)

    def shard_shape(self, shape: tuple[int, ...], shard: int) -> tuple[int, ...]:
        """Returns the shape of one shard of a variable of this shape."""
        size = self.bounds[shard].size
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])

    def bytes_per_ps(self, variable: VariableSpec, num_ps: int) -> tuple[int, ...]:
        """The bytes of the variable's value on each ps."""
        totals = [0] * num_ps
        for i, shard in enumerate(self.bounds):
            shape = self.shard_shape(variable.shape, i)
            totals[shard.ps] += math.prod(shape) * variable.itemsize
        return tuple(totals)

    def check(self, variable: VariableSpec, num_ps: int) -> None:
        """Checks that this partition fits a variable and a cluster.

        Raises:
            PartitionError: If the variable has no such axis, the axis has another
                size, or a shard is on a ps that the cluster does not have.
        """
        if self.axis >= len(variable.shape):
            raise PartitionError(
                f"{variable.name} of shape {variable.shape} has no axis {self.axis}"
            )
        dimension, covered = variable.shape[self.axis], self.bounds[-1].stop
        if covered != dimension:
            raise PartitionError(
                f"the shards of {variable.name} of shape {variable.shape} add up to "
                f"{covered} along axis {self.axis}, which is {dimension}"
            )
        absent = [index for index in self.ps if not 0 <= index < num_ps]
        if absent:
            raise PartitionError(
                f"a shard of {variable.name} is on ps {absent[0]}; the cluster has the "
                f"ps 0 to {num_ps - 1}"
            )
