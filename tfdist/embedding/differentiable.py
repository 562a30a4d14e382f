"""The two steps of a lookup's sum, with gradients on the devices of the sums.

A tape computes an operation's gradient on the device where the step runs. Rows of a
shard would then be sent to the worker and back. So these gradients are defined
explicitly, each on the device of its sum.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.embedding import routing
from tfdist.variables.partitioned import PartitionedVariable

Find = Callable[[tf.Tensor], tf.Tensor]
"""Returns the rows of ids, each there once, and `ABSENT` for those that have none."""

ABSENT = 0
"""The row of ids that have none: zeros, and nothing updates it."""


def sums_on_shards(
    params: Sequence[tf.Variable | tf.Tensor] | PartitionedVariable,
    routes: Sequence[routing.Route],
    max_norm: float | None = None,
    find: Sequence[Find] | None = None,
) -> list[tf.Tensor]:
    """Sums rows of each shard by segment, on the shard's device: `[segments, dim]`.

    Rows with a larger norm than `max_norm` are first scaled down to it. Messages have
    ids in place of rows if it is given how to `find` their rows, shard by shard.

    Cost: each shard receives its message and weights, sends its block, and later
    receives the block's gradient. The gradient with respect to the shard is computed
    there, with each row once.
    """
    if isinstance(params, PartitionedVariable):
        params = params.shards
    return [
        _sum_on_shard(
            shard,
            route.message,
            [] if route.ps_weights is None else [route.ps_weights],
            max_norm,
            how,
        )
        for shard, route, how in zip(
            params, routes, find or len(routes) * (None,), strict=True
        )
    ]


def _sum_on_shard(
    shard: tf.Variable | tf.Tensor,
    message: tf.Tensor,
    weights: Sequence[tf.Tensor],
    max_norm: float | None,
    find: Find | None,
) -> tf.Tensor:
    # The weights are arguments because a custom gradient reaches arguments only, not
    # captured tensors.
    @tf.custom_gradient
    def block_of(table: tf.Tensor, *weights: tf.Tensor) -> Any:
        block, gradient = _block_and_gradient(
            shard, table, message, weights, max_norm, find
        )

        def flat_gradient(d_block: tf.Tensor) -> list[Any]:
            by_table, by_weights = gradient(d_block)
            return [by_table, *by_weights]

        return block, flat_gradient

    with tf.device(_device_of(shard)):
        if not _is_resource(shard):
            return block_of(tf.convert_to_tensor(shard), *weights)
        # Reads no rows, but tells the tape that the variable is used.
        shard.sparse_read(tf.constant([], tf.int32))
        return block_of(shard.handle, *weights)


def _block_and_gradient(
    shard: tf.Variable | tf.Tensor,
    table: tf.Tensor,
    message: tf.Tensor,
    weights: Sequence[tf.Tensor],
    max_norm: float | None,
    find: Find | None,
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.IndexedSlices, list[tf.Tensor]]]]:
    """Returns the block of one shard, and the function that computes its gradients."""
    # TensorFlow keeps each custom gradient for good: it must hold no table.
    device, dtype, shape = _device_of(shard), shard.dtype, shard.shape.as_list()
    has_ids = find is not None
    with tf.device(device):
        ids, segments, num_segments = routing.unpack(message)
        unique_ids, index = tf.unique(ids)
        # If a sum follows a gather of unique ids, TensorFlow's graph optimizer has the
        # sum take its rows from the whole table, which each step then copies. It does
        # not see through this.
        index = tf.ensure_shape(index, [None])
        numbers = unique_ids if find is None else find(unique_ids)
        rows = _gathered(table, numbers, dtype)
        clipped = clip_rows(rows, max_norm)
        # On the plain route the ps gets no weights. Which route is taken is known only
        # when the step runs.
        all_weights = _filled_up(weights[0], tf.size(ids)) if weights else None
        block = partial_sum(clipped, index, segments, all_weights, num_segments)
        # The block is sent in the shard's dtype, half precision for example.
        block = tf.cast(block, shard.dtype)

    def gradient(d_block: tf.Tensor) -> tuple[tf.IndexedSlices, list[tf.Tensor]]:
        with tf.device(device):
            d_block = _computable(d_block)
            d_clipped = rows_gradient(
                d_block, index, segments, all_weights, tf.size(unique_ids)
            )
            d_rows = tf.cast(clip_gradient(d_clipped, rows, max_norm), dtype)
            # The weights that `_filled_up` added are constants and have no gradient.
            by_weights = [
                weights_gradient(d_block, clipped, index, segments)[: tf.size(each)]
                for each in weights
            ]
            if not has_ids:
                return tf.IndexedSlices(d_rows, numbers, tf.constant(shape)), by_weights
            return of_known_ids(d_rows, numbers, shape), by_weights

    return block, gradient


def _gathered(table: tf.Tensor, numbers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # Not `shard.sparse_read`: TensorFlow would notice the variable, and require a
    # gradient function with the argument `variables`.
    if table.dtype == tf.resource:
        rows = tf.raw_ops.ResourceGather(resource=table, indices=numbers, dtype=dtype)
    else:
        rows = tf.gather(table, numbers)
    return _computable(rows)


def of_known_ids(
    d_rows: tf.Tensor, numbers: tf.Tensor, shape: list[int | None]
) -> tf.IndexedSlices:
    """Returns the gradient with respect to a table, but for ids that have no row."""
    is_there = tf.not_equal(numbers, ABSENT)
    return tf.IndexedSlices(
        tf.boolean_mask(d_rows, is_there),
        tf.boolean_mask(numbers, is_there),
        tf.constant(shape, numbers.dtype),
    )


def sum_of_block(
    block: tf.Tensor, route: routing.Route, num_segments: tf.Tensor
) -> tf.Tensor:
    """Sums rows of a block `[n, dim]` by segment, on the current device.

    The result has at least the precision of float32. The gradient with respect to the
    block is dense and as large as the block: it is sent back to the ps.
    """
    slots, segments = route.slots, route.segments
    # TensorFlow would compute the block's shape on the ps, and send it in a message.
    num_slots = route.num_slots

    @tf.custom_gradient
    def sum_of(block: tf.Tensor, *weights: tf.Tensor) -> Any:
        rows = _computable(block)
        only_weights = weights[0] if weights else None

        def gradient(d_sum: tf.Tensor | tf.IndexedSlices) -> list[tf.Tensor]:
            d_sum = tf.convert_to_tensor(d_sum)
            by_block = rows_gradient(d_sum, slots, segments, only_weights, num_slots)
            return [tf.cast(by_block, block.dtype)] + [
                weights_gradient(d_sum, rows, slots, segments) for _ in weights
            ]

        return (
            partial_sum(rows, slots, segments, only_weights, num_segments),
            gradient,
        )

    return sum_of(block, *[] if route.weights is None else [route.weights])


def computing_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which rows are summed: at least float32."""
    return tf.float32 if dtype.size < tf.float32.size else dtype


def _is_resource(shard: tf.Variable | tf.Tensor) -> bool:
    # TF1 variables with use_resource=False have no handle.
    return isinstance(shard, tf.Variable) and hasattr(shard, "handle")


def _device_of(shard: tf.Variable | tf.Tensor) -> tf.DeviceSpec:
    device = tf.DeviceSpec.from_string(shard.device)
    # A function that uses a variable of this process may be exported and loaded in
    # another process, whose job has another name.
    is_remote = device.job == "ps"
    return device if is_remote else device.replace(job=None, replica=None, task=None)


def _computable(rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(rows, computing_dtype(rows.dtype))


def _filled_up(weights: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    missing = tf.ones([size - tf.size(weights)], weights.dtype)
    return tf.concat([weights, missing], axis=0)


def partial_sum(
    rows: tf.Tensor,
    index: tf.Tensor,
    segments: tf.Tensor,
    weights: tf.Tensor | None,
    num_segments: tf.Tensor | int,
) -> tf.Tensor:
    """Sums weighted rows `[num_rows, dim]` by segment: `[num_segments, dim]`.

    `index` has the rows to sum, possibly repeated, and `segments` the ascending segment
    of each; weights have the dtype of `rows`, None for ones. Empty segments are zeros.
    """
    if weights is None:
        # Sums without storing the gathered rows, but takes no weights.
        return tf.sparse.segment_sum(rows, index, segments, num_segments)
    weighted = tf.gather(rows, index) * weights[:, tf.newaxis]
    # `tf.math.segment_sum` has no `num_segments`, and would omit empty ones at the end.
    return tf.math.unsorted_segment_sum(weighted, segments, num_segments)


def rows_gradient(
    d_sum: tf.Tensor,
    index: tf.Tensor,
    segments: tf.Tensor,
    weights: tf.Tensor | None,
    num_rows: tf.Tensor | int,
) -> tf.Tensor:
    """Returns the gradient of `partial_sum` with respect to its rows, repeats summed.

    `d_sum` is the gradient with respect to the sum.
    """
    d_weighted = tf.gather(d_sum, segments)
    if weights is not None:
        d_weighted *= weights[:, tf.newaxis]
    return tf.math.unsorted_segment_sum(d_weighted, index, num_rows)


def weights_gradient(
    d_sum: tf.Tensor, rows: tf.Tensor, index: tf.Tensor, segments: tf.Tensor
) -> tf.Tensor:
    """Returns the gradient of `partial_sum` with respect to its weights, `[n]`."""
    return tf.reduce_sum(tf.gather(d_sum, segments) * tf.gather(rows, index), axis=1)


def clip_rows(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Scales rows whose L2 norm exceeds `max_norm` down to it."""
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[1])


def clip_gradient(
    d_clipped: tf.Tensor, rows: tf.Tensor, max_norm: float | None
) -> tf.Tensor:
    """Returns the gradient of `clip_rows` with respect to its rows.

    A row `r` that was scaled to `c r / |r|` can change only in direction: its gradient
    is `c / |r|` times the component of `d_clipped` that is orthogonal to `r`.
    """
    if max_norm is None:
        return d_clipped
    square = tf.reduce_sum(rows * rows, axis=1, keepdims=True)
    along = tf.reduce_sum(d_clipped * rows, axis=1, keepdims=True)
    turned = d_clipped - rows * tf.math.divide_no_nan(along, square)
    scale = tf.math.divide_no_nan(tf.constant(max_norm, rows.dtype), tf.sqrt(square))
    is_clipped = square >= max_norm * max_norm
    return tf.where(is_clipped, scale * turned, d_clipped)
