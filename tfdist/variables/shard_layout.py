"""The layouts of a partitioned variable: which shard holds which indices.

In the `div` layout, shards hold contiguous indices. In the `mod` layout, row i is on
shard i % n, so frequent rows at the start of a table, such as words sorted by frequency,
load all ps equally.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfdist.placement.partition import Partition, PartitionError, even_sizes

DIV, MOD = "div", "mod"


def locate(
    ids: tf.Tensor, sizes: Sequence[int], partition_strategy: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the shard and the row of each id.

    Ids go from 0 up to the sum of the sizes, in any shape. By `"mod"`, row i is on
    shard i % n; by `"div"`, each shard has contiguous rows.
    """
    if partition_strategy == MOD:
        return ids % len(sizes), ids // len(sizes)
    starts = tf.constant(np.cumsum([0, *sizes[:-1]]), ids.dtype)
    # Flat, since `tf.searchsorted` takes leading dimensions as batches, in which both
    # of its arguments must agree.
    shards = tf.searchsorted(starts[1:], tf.reshape(ids, [-1]), side="right")
    shards = tf.reshape(shards, tf.shape(ids))
    return shards, ids - tf.gather(starts, shards)


@dataclass(frozen=True)
class ShardLayout:
    """Splits a whole value into shards, and joins shards.

    Attributes:
        partition: The sizes and the ps of the shards.
        partition_strategy: `"div"` if shards are contiguous, along any axis; `"mod"` if row
            `i` is row `i // P` of shard `i % P`.

    Raises:
        PartitionError: If the shards have other sizes than rows that are dealt out.
    """

    partition: Partition
    partition_strategy: str = DIV

    def __post_init__(self) -> None:
        sizes = self.partition.sizes
        dealt = tuple(even_sizes(sum(sizes), len(sizes)))
        if self._is_dealt and (self.partition.axis or sizes != dealt):
            raise PartitionError(
                f"rows dealt out one by one (partition_strategy='mod') make "
                f"{len(sizes)} shards of {dealt} rows; these are {sizes} along axis "
                f"{self.partition.axis}. Use partition_strategy='div', or even shards "
                "of rows, the larger ones first"
            )

    @property
    def _is_dealt(self) -> bool:
        return self.partition_strategy == MOD

    def split(self, whole: tf.Tensor) -> list[tf.Tensor]:
        """Returns the value of each shard."""
        if self._is_dealt:
            count = len(self.partition.bounds)
            return [whole[shard::count] for shard in range(count)]
        return tf.split(whole, self.partition.sizes, axis=self.partition.axis)

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the whole value."""
        if self._is_dealt:
            rows, count = sum(self.partition.sizes), len(parts)
            return tf.dynamic_stitch(
                [tf.range(shard, rows, count) for shard in range(count)], list(parts)
            )
        return tf.concat(parts, axis=self.partition.axis)

    def join_arrays(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the whole value, from NumPy arrays."""
        if self._is_dealt:
            rows = sum(self.partition.sizes)
            whole = np.empty((rows, *parts[0].shape[1:]), parts[0].dtype)
            for shard, part in enumerate(parts):
                whole[shard :: len(parts)] = part
            return whole
        return np.concatenate(parts, axis=self.partition.axis)

    def indices(self, shard: int, rows: tf.Tensor) -> tf.Tensor:
        """Returns the indices, in the whole, of rows of a shard."""
        if self._is_dealt:
            return rows * len(self.partition.bounds) + shard
        return rows + tf.cast(self.partition.bounds[shard].start, rows.dtype)


def layout_of(
    partition: Partition, partition_strategy: str, name: str = "the variable"
) -> ShardLayout:
    """Returns the layout for a partition strategy, `"div"` or `"mod"`."""
    try:
        return ShardLayout(partition, partition_strategy)
    except PartitionError as error:
        raise PartitionError(f"{name}: {error}") from None
