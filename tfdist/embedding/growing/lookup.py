"""Lookups of a training step in a table that grows, which a tape goes through."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.embedding import routing
from tfdist.embedding.aggregated_lookup import combined
from tfdist.embedding.batch import Bag
from tfdist.embedding.differentiable import of_known_ids, sums_on_shards
from tfdist.embedding.growing.growing_shard import GrowingShard
from tfdist.embedding.growing.hashing import owners_of


def look_up(
    parts: Sequence[Any], shards: Sequence[GrowingShard], ids: tf.Tensor, creates: bool
) -> tf.Tensor:
    """Looks up distinct ids where their rows are.

    Args:
        parts: The rows of each ps.
        shards: The shards, which know the row of each id.
        ids: `[n]`, int64.
        creates: Whether ids that have no row get one, if they are admitted.

    Returns:
        `[n, width]`.
    """
    if len(parts) == 1:
        return _rows_of(parts[0], shards[0], ids, creates)
    owners = owners_of(ids, len(parts))
    of_shards = tf.dynamic_partition(ids, owners, len(parts))
    order = tf.dynamic_partition(tf.range(tf.size(ids)), owners, len(parts))
    found = [
        _rows_of(part, shard, of_shard, creates)
        for part, shard, of_shard in zip(parts, shards, of_shards, strict=True)
    ]
    return tf.dynamic_stitch(order, found)


def sum_bags(
    parts: Sequence[Any],
    shards: Sequence[GrowingShard],
    bag: Bag,
    combiner: str,
    creates: bool,
) -> tf.Tensor:
    """Combines the rows of bags, by the route that moves fewer bytes for each ps.

    Args:
        parts: The rows of each ps.
        shards: The shards, which know the row of each id.
        bag: The ids, which may repeat.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
        creates: Whether ids that have no row get one, if they are admitted.

    Returns:
        `[batch, width]`, of at least float32.
    """
    row_bytes = parts[0].shape[1] * parts[0].dtype.size
    owners = owners_of(bag.ids, len(parts))
    entries = routing.Entries(bag.ids, bag.segments, bag.weights)
    routes = [
        routing.choose(of_shard, row_bytes, aggregate=None).route
        for of_shard in routing.deal(entries, owners, len(parts))
    ]
    find = [shard.find_or_create if creates else shard.find for shard in shards]
    blocks = sums_on_shards(parts, routes, find=find)
    return combined(blocks, routes, bag, combiner)


def _rows_of(
    part: Any, shard: GrowingShard, ids: tf.Tensor, creates: bool
) -> tf.Tensor:
    # TensorFlow keeps each custom gradient for good: it must hold neither part nor shard.
    device, shape = device_of(part), part.shape.as_list()

    @tf.custom_gradient
    def rows_of(handle: tf.Tensor) -> Any:
        with at(device):
            rows = shard.find_or_create(ids) if creates else shard.find(ids)
            # Not `part.sparse_read`: its gradient would need an argument `variables`.
            values = tf.raw_ops.ResourceGather(
                resource=handle, indices=rows, dtype=part.dtype
            )

        def gradient(d_values: tf.Tensor) -> tf.IndexedSlices:
            # The rows' numbers never leave the ps.
            with at(device):
                return of_known_ids(d_values, rows, shape)

        return values, gradient

    with at(device):
        # Reads no rows, but tells the tape that the variable is used.
        part.sparse_read(tf.constant([], tf.int64))
        values = rows_of(part.handle)
    values.set_shape([None, part.shape[1]])
    return values


def at(device: str) -> Any:
    """Places operations on a ps; in one process, where TensorFlow would."""
    return tf.device(device) if device else contextlib.nullcontext()


def device_of(part: Any) -> str:
    """Returns the device of a ps that has a part of a table, or "" of this process."""
    spec = tf.DeviceSpec.from_string(part.device)
    return part.device if spec.job == "ps" else ""
