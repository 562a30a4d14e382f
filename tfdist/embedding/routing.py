"""Routes of lookups to shards: the shard of each id, and the message to it.

A lookup is a sum in two steps: the ps sums rows of its shard into a block, and the
worker sums rows of the block into rows of the batch. The two routes differ only in the
block: on the aggregated route it holds the sum of each segment, on the plain route each
distinct row once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.embedding import cost
from tfdist.variables.shard_layout import DIV, MOD, locate

STRATEGIES = (MOD, DIV)


class Entries(NamedTuple):
    """The ids of one shard, as rows of it, in the order of the batch; or of a table.

    `segments` has the row of the batch that each id belongs to, ascending, int64; the
    weights are None for ones.
    """

    rows: tf.Tensor
    segments: tf.Tensor
    weights: tf.Tensor | None


class Route(NamedTuple):
    """The inputs of the ps and the worker for their steps of the sum.

    For the ps: a message (see `pack`), and one weight per id of it, an empty tensor, or
    None if the lookup has no weights. For the worker: the number of rows of the block,
    rows of it (`slots`), the row of the batch that each of these is added to,
    ascending, and the weight of each, or None for ones.
    """

    message: tf.Tensor
    ps_weights: tf.Tensor | None
    num_slots: tf.Tensor
    slots: tf.Tensor
    segments: tf.Tensor
    weights: tf.Tensor | None


def split(
    entries: Entries, sizes: Sequence[int], partition_strategy: str
) -> list[Entries]:
    """Returns the entries of every shard, from those of the table."""
    shards, rows = locate(entries.rows, sizes, partition_strategy)
    # If they fit, int32 rows take half the bytes of int64 ids.
    rows = tf.cast(rows, _wire_dtype(sum(sizes)))
    return deal(entries._replace(rows=rows), tf.cast(shards, tf.int32), len(sizes))


def deal(entries: Entries, owners: tf.Tensor, num_shards: int) -> list[Entries]:
    """Returns the entries of every shard, from the shard of each: int32."""
    rows, segments, weights = entries
    # `tf.dynamic_partition` keeps the order, so the segments of a shard still ascend.
    positions = tf.dynamic_partition(tf.range(tf.size(rows)), owners, num_shards)
    return [
        Entries(
            tf.gather(rows, chosen),
            tf.gather(segments, chosen),
            None if weights is None else tf.gather(weights, chosen),
        )
        for chosen in positions
    ]


class RoutedShard(NamedTuple):
    """The route to one shard, and three int64 of bytes: moved, plain, aggregated."""

    route: Route
    bytes: tf.Tensor


def choose(entries: Entries, row_bytes: int, aggregate: bool | None) -> RoutedShard:
    """Chooses the route that moves fewer bytes, unless `aggregate` demands one."""
    unique_rows, slots = tf.unique(entries.rows)
    # `pack` concatenates lengths and rows, so they need the same dtype.
    runs, _, lengths = tf.unique_with_counts(
        entries.segments, out_idx=entries.rows.dtype
    )
    plain = cost.plain_bytes(
        tf.size(unique_rows, tf.int64),
        row_bytes=row_bytes,
        id_bytes=entries.rows.dtype.size,
    )
    aggregated = cost.aggregated_bytes(
        tf.size(entries.rows, tf.int64),
        tf.size(runs, tf.int64),
        row_bytes=row_bytes,
        id_bytes=entries.rows.dtype.size,
        weight_bytes=0 if entries.weights is None else entries.weights.dtype.size,
    )
    weights = entries.weights
    # Weights are empty or ones where a route needs none, since `tf.cond` requires both
    # routes to have the same fields.
    of_rows = Route(
        message=pack(unique_rows, unique_rows[:0]),
        ps_weights=None if weights is None else weights[:0],
        num_slots=tf.size(unique_rows),
        slots=slots,
        segments=entries.segments,
        weights=weights,
    )
    of_sums = Route(
        message=pack(entries.rows, lengths),
        ps_weights=weights,
        num_slots=tf.size(runs),
        slots=tf.range(tf.size(runs)),
        segments=runs,
        weights=None if weights is None else tf.ones_like(runs, weights.dtype),
    )
    if aggregate is None:
        route = _either(aggregated < plain, of_sums, of_rows)
        moved = tf.minimum(aggregated, plain)
    else:
        route = of_sums if aggregate else of_rows
        moved = aggregated if aggregate else plain
    return RoutedShard(route, tf.stack([moved, plain, aggregated]))


def pack(rows: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Packs the rows and the lengths of their segments into one message.

    Every message costs some hundred bytes, so one is better than two. Its first number
    is that of rows.
    """
    return tf.concat([[tf.size(rows, rows.dtype)], rows, lengths], axis=0)


def unpack(message: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the rows of a message, the segment of each row, and their number.

    Each row that no length covers is a segment by itself: on the plain route, all are.
    """
    end = message[0] + 1
    rows, lengths = message[1:end], message[end:]
    alone = tf.size(rows, lengths.dtype) - tf.reduce_sum(lengths)
    lengths = tf.concat([lengths, tf.ones([alone], lengths.dtype)], axis=0)
    num_segments = tf.size(lengths)
    return rows, tf.repeat(tf.range(num_segments), lengths), num_segments


def _either(condition: tf.Tensor, first: Route, second: Route) -> Route:
    # `tf.cond` takes no None. Both routes have the same fields.
    present = [field for field, value in first._asdict().items() if value is not None]
    values = tf.cond(
        condition,
        lambda: [getattr(first, field) for field in present],
        lambda: [getattr(second, field) for field in present],
    )
    return first._replace(**dict(zip(present, values, strict=True)))


def _wire_dtype(num_rows: int) -> tf.DType:
    return tf.int32 if num_rows <= tf.int32.max else tf.int64
