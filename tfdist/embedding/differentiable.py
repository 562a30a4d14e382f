"""The two steps of a lookup's sum, with gradients that stay where the sums are.

A tape runs the gradient of an operation wherever the step runs. Rows of a shard would
then travel to the worker and back, so these gradients are written out, each on the
device of its sum.
"""

from typing import Any

import tensorflow as tf

from tfdist.embedding import routing
from tfdist.embedding.partial_sum import (
    clip_gradient,
    clip_rows,
    partial_sum,
    rows_gradient,
    weights_gradient,
)


def sum_on_shard(
    shard: tf.Variable | tf.Tensor,
    message: tf.Tensor,
    weights: tf.Tensor | None,
    max_norm: float | None,
) -> tf.Tensor:
    """Sums rows of a shard by segment, on the shard's device.

    Cost: the message and the weights go there and the block comes back; later the
    block's gradient goes there. The gradient by the shard is computed there, and has
    each row once.

    Args:
        shard: `[rows, dim]`.
        message: Rows and segments, see `routing.pack`.
        weights: Of the rows of the message, or empty for ones; None for ones.
        max_norm: Rows that are longer are shortened to it first.

    Returns:
        The block `[segments, dim]`.
    """
    is_variable = isinstance(shard, tf.Variable)
    shape = shard.shape.as_list()

    @tf.custom_gradient
    def block_of(table: tf.Tensor, *weights: tf.Tensor) -> Any:
        ids, segments, num_segments = routing.unpack(message)
        unique_ids, index = tf.unique(ids)
        rows = _computable(
            tf.raw_ops.ResourceGather(
                resource=table, indices=unique_ids, dtype=shard.dtype
            )
            if is_variable
            else tf.gather(table, unique_ids)
        )
        clipped = clip_rows(rows, max_norm)
        all_weights = _filled_up(weights[0], tf.size(ids)) if weights else None
        block = partial_sum(clipped, index, segments, all_weights, num_segments)

        def gradient(d_block: tf.Tensor) -> list[Any]:
            with tf.device(shard.device):
                d_block = _computable(d_block)
                d_clipped = rows_gradient(
                    d_block, index, segments, all_weights, tf.size(unique_ids)
                )
                d_rows = tf.cast(clip_gradient(d_clipped, rows, max_norm), shard.dtype)
                by_table = tf.IndexedSlices(d_rows, unique_ids, tf.constant(shape))
                return [by_table] + [
                    weights_gradient(d_block, clipped, index, segments)[: tf.size(each)]
                    for each in weights
                ]

        return tf.cast(block, shard.dtype), gradient

    with tf.device(shard.device):
        if is_variable:
            # Reads nothing; it is how a tape learns that the variable is used.
            shard.sparse_read(tf.constant([], tf.int32))
        return block_of(
            shard.handle if is_variable else shard,
            *[] if weights is None else [weights],
        )


def sum_of_block(
    block: tf.Tensor,
    slots: tf.Tensor,
    segments: tf.Tensor,
    weights: tf.Tensor | None,
    num_segments: tf.Tensor,
) -> tf.Tensor:
    """Sums rows of a block by segment, where it is called.

    The gradient by the block is dense, as large as the block: it goes back to the ps.

    Args:
        block: `[n, dim]`, from `sum_on_shard`.
        slots: Rows of the block, in the order of their segments.
        segments: The segment that each of these is added to, ascending.
        weights: The weight of each; None for ones.
        num_segments: Rows of the result.

    Returns:
        `[num_segments, dim]`, at least of the precision of float32.
    """

    @tf.custom_gradient
    def sum_of(block: tf.Tensor, *weights: tf.Tensor) -> Any:
        rows = _computable(block)
        only_weights = weights[0] if weights else None

        def gradient(d_sum: tf.Tensor | tf.IndexedSlices) -> list[tf.Tensor]:
            d_sum = tf.convert_to_tensor(d_sum)
            by_block = rows_gradient(
                d_sum, slots, segments, only_weights, tf.shape(rows)[0]
            )
            return [tf.cast(by_block, block.dtype)] + [
                weights_gradient(d_sum, rows, slots, segments) for _ in weights
            ]

        return (
            partial_sum(rows, slots, segments, only_weights, num_segments),
            gradient,
        )

    return sum_of(block, *[] if weights is None else [weights])


def computing_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype in which rows are summed: half precision is for the wire alone."""
    return tf.float32 if dtype.size < tf.float32.size else dtype


def _computable(rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(rows, computing_dtype(rows.dtype))


def _filled_up(weights: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    missing = tf.ones([size - tf.size(weights)], weights.dtype)
    return tf.concat([weights, missing], axis=0)
