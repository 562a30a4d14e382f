"""Which weights are split over the ps without being asked. Pure.

A weight in one piece moves over the link of one ps, so that a step takes as long as if
there were no other ps. In shards it moves over all of their links; and one shard comes back
while the gradient of the next goes out, which takes two of them on a single ps, too.
"""

from tfdist.placement.partitioners import MinSizePartitioner
from tfdist.placement.variable_spec import VariableSpec

LEAST_SPLIT = 2**19
"""Bytes. Below, messages cost more than what they carry."""

_LEAST_ROWS = 8
"""Per shard. With fewer, as of the kernel of a convolution, shards would be uneven."""

_TABLE = "embeddings"
"""How Keras's layers call their tables, of which a step moves a few rows."""


def partitioner_for(weight: VariableSpec, num_ps: int) -> MinSizePartitioner | None:
    """Returns what splits a weight into a shard per ps, or None if it stays whole.

    >>> partitioner_for(VariableSpec("dense/kernel", (784, 256), "float32", 4), 2)
    MinSizePartitioner(min_shard_bytes=262144, max_shards=2, bytes_per_string=16)

    Args:
        weight: A trainable variable.
        num_ps: The number of ps.
    """
    is_table = weight.name.rpartition("/")[2] == _TABLE
    shards = max(num_ps, 2)
    if is_table or weight.size_bytes < LEAST_SPLIT:
        return None
    if weight.shape[0] < _LEAST_ROWS * shards:
        return None
    return MinSizePartitioner(LEAST_SPLIT // 2, max_shards=shards)
