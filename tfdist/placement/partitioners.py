"""Partitioners, which decide how many shards a variable has.

A partitioner has TensorFlow's signature, `partitioner(shape, dtype, axis=0)`, and
returns the number of shards on each axis, at most one of them above 1. TensorFlow's and
TF1's partitioners work as well as these.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol

from tfdist.placement.partition import Partition, PartitionError, even_sizes
from tfdist.placement.placement import Placement, RoundRobin, ps_of_shards
from tfdist.placement.variable_spec import VariableSpec

# The default of TensorFlow's partitioners; `tf.string.size` is 0.
BYTES_PER_STRING = 16


class Partitioner(Protocol):
    """Decides how many shards a variable has."""

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> Sequence[int]:
        """Returns the number of shards on each axis.

        The shape is a `tf.TensorShape` or integers, all known; the dtype a `tf.DType`,
        or any object with a `size` in bytes.
        """


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """Splits every variable into `num_shards`, or into single rows if it has fewer.

    >>> FixedShardsPartitioner(2)((10, 3), None)
    [2, 1]

    Attributes:
        num_shards: The number of shards, at least 1.

    Raises:
        ValueError: If `num_shards` is not a whole number of at least 1.
    """

    num_shards: int

    def __post_init__(self) -> None:
        _check_whole(1, num_shards=self.num_shards)

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of shards on each axis."""
        return _along(axis, _dimensions(shape, axis), self.num_shards)


@dataclass(frozen=True)
class MinSizePartitioner:
    """Splits into shards of about `min_shard_bytes` each.

    The last one may have less.

    Attributes:
        min_shard_bytes: The bytes per shard.
        max_shards: The most shards. As in TensorFlow, the default, 1, splits nothing.
        bytes_per_string: The assumed size of a string element.

    Raises:
        ValueError: If one of them is below 1.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = BYTES_PER_STRING

    def __post_init__(self) -> None:
        text = self.bytes_per_string
        _check_positive(min_shard_bytes=self.min_shard_bytes)
        _check_whole(1, max_shards=self.max_shards, bytes_per_string=text)

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of shards on each axis."""
        dimensions = _dimensions(shape, axis)
        size = math.prod(dimensions) * _itemsize(dtype, self.bytes_per_string)
        # Rounded up as in TensorFlow, although shards may then be below the minimum.
        shards = math.ceil(size / self.min_shard_bytes)
        return _along(axis, dimensions, min(self.max_shards, shards))


@dataclass(frozen=True)
class MaxSizePartitioner:
    """Splits into as few shards as possible, of at most `max_shard_bytes` each.

    Rows are not split: if a row is larger, each row is a shard.

    Attributes:
        max_shard_bytes: The most bytes per shard.
        max_shards: The most shards, even if they become larger; None for no limit.
        bytes_per_string: The assumed size of a string element.

    Raises:
        ValueError: If one of them is below 1.
    """

    max_shard_bytes: float
    max_shards: int | None = None
    bytes_per_string: int = BYTES_PER_STRING

    def __post_init__(self) -> None:
        _check_positive(max_shard_bytes=self.max_shard_bytes)
        most = 1 if self.max_shards is None else self.max_shards
        _check_whole(1, max_shards=most, bytes_per_string=self.bytes_per_string)

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of shards on each axis."""
        dimensions = _dimensions(shape, axis)
        size = math.prod(dimensions) * _itemsize(dtype, self.bytes_per_string)
        # An empty variable has no bytes per row to divide by.
        if not size:
            return _along(axis, dimensions, 1)
        rows = max(1, math.floor(self.max_shard_bytes / (size / dimensions[axis])))
        shards = math.ceil(dimensions[axis] / rows)
        return _along(axis, dimensions, min(shards, self.max_shards or shards))


@dataclass(frozen=True)
class TargetSizePartitioner:
    """Splits finely enough for `GreedyLoadBalancing` to keep the planner's target.

    For a model that cannot be planned, since it is not known before it is created.
    Greedy placement puts at most the mean plus `1 - 1/m` times the largest shard on the
    fullest of m ps (R. L. Graham, 1966). So shards of at most
    `(target - 1) total / (m - 1)` bytes keep the fullest ps below `target` times the
    mean, provided that a row is smaller than that.

    Cost: at most `(m - 1) / (target - 1)` shards more than there are variables: 150 for
    4 ps. A plan needs at most `m - 1`.

    >>> TargetSizePartitioner(1_000_000, num_ps=3, target=1.1).max_shard_bytes
    50000.0

    Attributes:
        total_bytes: The bytes of all variables, without optimizer slots; if uncertain,
            a lower bound.
        num_ps: The number of ps.
        target: The bytes on the fullest ps over the mean, above 1.

    Raises:
        ValueError: If one of them is out of range.
    """

    total_bytes: int
    num_ps: int
    target: float = 1.02

    def __post_init__(self) -> None:
        _check_positive(total_bytes=self.total_bytes)
        _check_whole(1, num_ps=self.num_ps)
        if not self.target > 1:
            raise ValueError(
                f"target must be an imbalance above 1, such as 1.02; received {self.target}"
            )

    @property
    def max_shard_bytes(self) -> float:
        """The most bytes per shard; at least 1."""
        # Rounded, because 1.02 - 1 is 0.020000000000000018 in floating point.
        share = round(self.target - 1, 12) * self.total_bytes
        return max(1.0, share / max(1, self.num_ps - 1))

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of shards on each axis."""
        if self.num_ps == 1:
            return [1] * len(_dimensions(shape, axis))
        return MaxSizePartitioner(self.max_shard_bytes)(shape, dtype, axis)


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Callable[..., list[int]]:
    """Returns a partitioner of a fixed number of shards, in TF1's form.

    Behaves as `tf.compat.v1.fixed_size_partitioner`, except that a variable without
    this axis (a bias has no axis 1) stays whole; TF1's raises IndexError.

    Args:
        num_shards: The number of shards.
        axis: The axis to split.

    Raises:
        ValueError: If `num_shards` is not a whole number of at least 1, or `axis` one of
            at least 0.
    """
    fixed = FixedShardsPartitioner(num_shards)
    _check_whole(0, axis=axis)

    def fixed_size_partition(shape: Any, dtype: Any = None, **_: Any) -> list[int]:
        rank = len(tuple(shape))
        return fixed(shape, dtype, axis) if axis < rank else [1] * rank

    return fixed_size_partition


def partition_of(
    partitioner: Callable[..., Any],
    variable: VariableSpec,
    num_ps: int,
    placement: Placement | None = None,
) -> Partition | None:
    """Asks a partitioner how a variable is split, and a placement where its shards go.

    Returns None if the variable stays whole. If the axis does not divide evenly, the
    first shards have one index more. Without a placement, they go to the ps in turn.

    Raises PartitionError if the partitioner raises or returns something invalid.
    """
    # A scalar has no axis: TensorFlow's FixedShardsPartitioner would raise IndexError.
    if not variable.shape:
        return None
    # TensorFlow's own partitioners accept only its types.
    import tensorflow as tf

    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    try:
        answer = partitioner(shape=shape, dtype=dtype)
    # A custom partitioner may raise anything, and does not know the variable's name.
    except Exception as error:
        raise PartitionError(
            f"the partitioner {_name(partitioner)} cannot split {variable.name} of "
            f"shape {variable.shape}: {type(error).__name__}: {error}"
        ) from error
    counts = _checked(answer, partitioner, variable)
    axis = max(range(len(counts)), key=counts.__getitem__)
    if counts[axis] == 1:
        return None
    sizes = even_sizes(variable.shape[axis], counts[axis])
    placement = RoundRobin() if placement is None else placement
    shards = [_shard(variable, axis, i, size) for i, size in enumerate(sizes)]
    return Partition.of_sizes(axis, sizes, ps_of_shards(placement, shards, num_ps))


def _shard(variable: VariableSpec, axis: int, index: int, size: int) -> VariableSpec:
    shape = (*variable.shape[:axis], size, *variable.shape[axis + 1 :])
    # TensorFlow names the shards of a ShardedVariable in this way.
    return VariableSpec(
        f"{variable.name}/part_{index}", shape, variable.dtype, variable.itemsize
    )


def _checked(
    counts: Any, partitioner: Callable[..., Any], variable: VariableSpec
) -> list[int]:
    problem = _problem(counts, variable.shape)
    if problem is None:
        return [int(count) for count in counts]
    raise PartitionError(
        f"the partitioner {_name(partitioner)} returned {counts!r} for {variable.name} of shape "
        f"{variable.shape}: {problem}. It must return the number of shards on each "
        "axis, of which one at most is above 1, for example "
        f"{[2] + [1] * (len(variable.shape) - 1)}"
    )


def _name(partitioner: Callable[..., Any]) -> str:
    return str(getattr(partitioner, "__name__", type(partitioner).__name__))


def _problem(counts: Any, shape: tuple[int, ...]) -> str | None:
    if not isinstance(counts, list | tuple):
        return "that is not a list"
    if len(counts) != len(shape):
        return f"the variable has {len(shape)} axes"
    if any(isinstance(n, bool) or not hasattr(n, "__index__") for n in counts):
        return "these are not whole numbers"
    if min(counts) < 1:
        return "an axis has at least one shard"
    if sum(count > 1 for count in counts) > 1:
        return "it is split along more than one axis"
    for axis, (count, dimension) in enumerate(zip(counts, shape, strict=True)):
        # An axis of size 0 still counts as one shard: the variable stays whole.
        if count > max(1, dimension):
            return f"axis {axis} has {dimension} indices, fewer than shards"
    return None


def _dimensions(shape: Any, axis: int) -> tuple[int, ...]:
    dimensions = tuple(shape)
    if any(dimension is None for dimension in dimensions):
        raise PartitionError(f"a shape to split must be fully known; received {shape}")
    if not 0 <= axis < len(dimensions):
        raise PartitionError(
            f"axis must be one of the shape {dimensions}; received axis {axis}"
        )
    return dimensions


def _along(axis: int, dimensions: tuple[int, ...], shards: int) -> list[int]:
    counts = [1] * len(dimensions)
    counts[axis] = max(1, min(shards, dimensions[axis]))
    return counts


def _itemsize(dtype: Any, bytes_per_string: int) -> int:
    is_string = getattr(dtype, "name", dtype) == "string"
    return bytes_per_string if is_string else int(dtype.size)


def _check_whole(least: int, **values: Any) -> None:
    for name, value in values.items():
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or value < least:
            raise ValueError(
                f"{name} must be a whole number, at least {least}; received {value!r}"
            )


def _check_positive(**values: Any) -> None:
    for name, value in values.items():
        # Real, since `TargetSizePartitioner` computes fractions of a byte. `not >=`,
        # since NaN would pass a check with `<`.
        if not isinstance(value, Real) or not float(value) >= 1:
            raise ValueError(f"{name} must be a number, at least 1; received {value!r}")
