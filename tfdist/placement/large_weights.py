"""Weights that are split over the ps by default. Pure.

A weight in one piece moves over the link of one ps, so that a step takes as long as if
there were no other ps. In shards it moves over all of their links; and one shard comes back
while the gradient of the next goes out, which takes two of them on a single ps, too.
"""

import functools
from collections.abc import Callable
from typing import Any

from tfdist.placement.partitioners import MinSizePartitioner
from tfdist.placement.variable_spec import VariableSpec

LEAST_SECONDS = 4e-3
"""The least seconds on a link of a weight that is split: 500 kB at 1 Gbit/s.

Below, messages cost more than shards save.
"""

LEAST_BYTES = 2**16
"""The least bytes of a weight that is split, however slow the link is."""

_LEAST_INDICES = 8
"""Per shard, on the axis that is split. With fewer, shards would be uneven."""

_LAST_AXIS_FROM = 2e-8
"""Seconds per byte, of a link on which kernels of convolutions are split: 400 Mbit/s.

To put pieces together along the last axis, and to cut the gradient, takes a worker 3.5 ns per
byte, which many large kernels do not earn back on a faster link.
"""

_TABLE = "embeddings"
"""The name of tables in Keras's layers, of which a step moves a few rows."""


def may_be_split(weight: VariableSpec) -> bool:
    """Returns True if a link could be slow enough for a weight to be split."""
    is_table = weight.name.rpartition("/")[2] == _TABLE
    return not is_table and weight.size_bytes >= LEAST_BYTES


def partitioner_for(
    weight: VariableSpec, num_ps: int, seconds_per_byte: float
) -> Callable[..., Any] | None:
    """Returns the partitioner into a shard per ps, or None if a weight stays whole.

    It is split by rows; or on a slow link along its last axis, if it has few rows, as the
    kernel of a convolution has.

    >>> kernel = VariableSpec("conv2d/kernel", (5, 5, 32, 64), "float32", 4)
    >>> partitioner_for(kernel, 2, 4e-8).keywords
    {'axis': 3}
    >>> partitioner_for(kernel, 2, 8e-9)
    >>> large = VariableSpec("conv2d/kernel", (3, 3, 192, 192), "float32", 4)
    >>> partitioner_for(large, 2, 8e-9)

    Args:
        weight: A trainable variable.
        num_ps: The number of ps.
        seconds_per_byte: How long the link of a worker takes for a byte; 0 if it is not
            the link that binds.
    """
    seconds = weight.size_bytes * seconds_per_byte
    if not may_be_split(weight) or seconds < LEAST_SECONDS:
        return None
    shards = max(num_ps, 2)
    axes = [0, len(weight.shape) - 1] if seconds_per_byte >= _LAST_AXIS_FROM else [0]
    enough = [axis for axis in axes if weight.shape[axis] >= _LEAST_INDICES * shards]
    if not enough:
        return None
    # Half, so that a weight just at the threshold makes two shards.
    least = int(LEAST_SECONDS / 2 / seconds_per_byte)
    return functools.partial(
        MinSizePartitioner(least, max_shards=shards), axis=enough[0]
    )
