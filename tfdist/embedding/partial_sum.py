"""The weighted sum of rows and its gradients, as functions without a tape.

They run on the current device: on the ps for rows of a shard, and on the worker for rows
of the blocks that the ps sent.
"""

import tensorflow as tf


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
