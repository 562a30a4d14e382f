"""Checks the ids and weights of a batch.

Types and shapes are checked when the step is traced, values when it runs.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.embedding.checks import Table
from tfdist.embedding.differentiable import computing_dtype


class Bag(NamedTuple):
    """The ids of a batch, `[n]`, with the row of each, ascending, as int64.

    The weights are None for ones; `num_segments` is the number of rows.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    weights: tf.Tensor | None
    num_segments: tf.Tensor


def bag(table: Table, sp_ids: Any, sp_weights: Any, *, has_bounds: bool = True) -> Bag:
    """Returns the ids of a batch; their values are checked when the step runs.

    Without `has_bounds`, an id may have any value.

    A step with ids out of range, or with weights that do not match the ids, raises
    `tf.errors.InvalidArgumentError`.
    """
    if not isinstance(sp_ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            "sp_ids must be a tf.SparseTensor or tf.RaggedTensor; received "
            f"{type(sp_ids)}"
        )
    if sp_weights is not None and type(sp_weights) is not type(sp_ids):
        raise TypeError(
            f"sp_weights must be None or, like sp_ids, a {type(sp_ids).__name__}; received "
            f"{type(sp_weights)}"
        )
    if sp_ids.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"sp_ids must be int32 or int64; received {sp_ids.dtype.name}")
    if sp_ids.shape.rank != 2:
        raise ValueError(
            "sp_ids must be a matrix with one bag per row; received the shape "
            f"{sp_ids.shape}"
        )
    valid = []
    if has_bounds:
        valid += _in_range(sp_ids.values, table.num_rows, table.name)
    if isinstance(sp_ids, tf.SparseTensor):
        segments, num_segments = sp_ids.indices[:, 0], sp_ids.dense_shape[0]
        # A message has the length of each run of equal segments, so equal ones must be
        # neighbors. In a RaggedTensor they always are.
        valid += _ascending(table, segments)
    else:
        segments, num_segments = sp_ids.value_rowids(), sp_ids.nrows()
    weights = None
    if sp_weights is not None:
        valid += _weights_fit(table, sp_ids, sp_weights)
        weights = sp_weights.values
    with tf.control_dependencies(valid):
        # Only operations created in this scope wait for the checks.
        ids = tf.identity(sp_ids.values)
        if weights is not None:
            weights = tf.cast(tf.identity(weights), computing_dtype(table.dtype))
    return Bag(
        ids, tf.cast(segments, tf.int64), weights, tf.cast(num_segments, tf.int64)
    )


def ids_in_range(ids: Any, num_rows: int, name: str) -> tf.Tensor:
    """Returns the ids; their values are checked when the step runs.

    A step with an id that is not a row of the table raises
    `tf.errors.InvalidArgumentError`.
    """
    ids = whole_numbers(ids, name)
    with tf.control_dependencies(_in_range(ids, num_rows, name)):
        return tf.identity(ids)


def whole_numbers(ids: Any, name: str) -> tf.Tensor:
    """Converts ids to int32 or int64, from other integers, bools or integral floats.

    A step with a fractional float raises `tf.errors.InvalidArgumentError`.
    """
    if isinstance(ids, tf.SparseTensor):
        raise TypeError(
            f"ids of the table {name} must be dense or ragged; received a SparseTensor. "
            "Use tfdist.embedding.EmbeddingBag, which takes one, or tf.sparse.to_dense"
        )
    ids = tf.convert_to_tensor(ids)
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    if ids.dtype.is_floating:
        # `keras.layers.Embedding` accepts floats too, but silently drops the fraction.
        is_whole = tf.equal(ids, tf.floor(ids))
        valid = _assert(
            tf.reduce_all(is_whole),
            f"ids of the table {name} must be whole numbers; received, among others,",
            tf.boolean_mask(ids, ~is_whole)[:3],
        )
        with tf.control_dependencies(valid):
            return tf.cast(ids, tf.int64)
    if not ids.dtype.is_integer and ids.dtype != tf.bool:
        raise TypeError(
            f"ids of the table {name} must be integers; received {ids.dtype.name}. Map "
            "words to numbers first, for example with keras.layers.StringLookup"
        )
    return tf.cast(ids, tf.int64)


def bags(inputs: Any, weights: Any, padding: int, name: str) -> tuple[Any, Any]:
    """Converts ids (ragged, sparse or padded) and weights: both ragged or both sparse."""
    if isinstance(inputs, tf.RaggedTensor):
        ids = whole_numbers(inputs.flat_values, name)
        return inputs.with_flat_values(ids), weights
    if isinstance(inputs, tf.SparseTensor):
        return inputs.with_values(whole_numbers(inputs.values, name)), weights
    ids = whole_numbers(inputs, name)
    if ids.shape.rank != 2:
        raise ValueError(
            "bags of ids must be a tensor [batch, any], ragged, sparse or padded with "
            f"{padding}; received the shape {ids.shape}"
        )
    is_id = tf.not_equal(ids, tf.cast(padding, ids.dtype))
    if weights is not None:
        weights = tf.convert_to_tensor(weights)
        if not ids.shape.is_compatible_with(weights.shape):
            raise ValueError(
                f"weights must have the shape of the ids, {ids.shape}; received "
                f"{weights.shape}"
            )
        weights = tf.ragged.boolean_mask(weights, is_id)
    return tf.ragged.boolean_mask(ids, is_id), weights


def _assert(condition: tf.Tensor, *message: Any) -> list[tf.Operation]:
    """Returns control dependencies for a graph; in eager mode, raises immediately."""
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(condition, list(message))]
    if not condition:
        # TensorFlow's message would name a tensor that is not True, and print bytes.
        words = [each.numpy() if tf.is_tensor(each) else each for each in message]
        raise tf.errors.InvalidArgumentError(None, None, " ".join(map(str, words)))
    return []


def _in_range(ids: tf.Tensor, num_rows: int, name: str) -> list[tf.Operation]:
    # In int64, because int32 ids compared with a larger `num_rows` overflow silently.
    inside = (ids >= 0) & (tf.cast(ids, tf.int64) < num_rows)
    return _assert(
        tf.reduce_all(inside),
        f"ids of the table {name} must be from 0 to {num_rows - 1}; received, among "
        "others,",
        tf.boolean_mask(ids, ~inside)[:3],
    )


def _ascending(table: Table, segments: tf.Tensor) -> list[tf.Operation]:
    return _assert(
        tf.reduce_all(segments[1:] >= segments[:-1]),
        f"sp_ids of the table {table.name} are not in the order of their rows; "
        "pass tf.sparse.reorder(sp_ids), and the weights in the same order",
    )


def _weights_fit(table: Table, sp_ids: Any, sp_weights: Any) -> list[tf.Operation]:
    if not sp_weights.dtype.is_floating:
        raise TypeError(f"sp_weights must be floats; received {sp_weights.dtype.name}")
    if not sp_ids.shape.is_compatible_with(
        sp_weights.shape
    ) or not sp_ids.values.shape.is_compatible_with(sp_weights.values.shape):
        raise ValueError(
            "sp_weights must have one weight per id of sp_ids: received "
            f"{_extent(sp_weights)} weights for {_extent(sp_ids)} ids of the table "
            f"{table.name}"
        )
    if isinstance(sp_ids, tf.RaggedTensor):
        return _same(table, *(_ragged_positions(sp) for sp in (sp_ids, sp_weights)))
    return _same(table, sp_ids.indices, sp_weights.indices)


def _ragged_positions(sp: tf.RaggedTensor) -> tf.Tensor:
    rows = sp.value_rowids()
    columns = tf.range(tf.size(rows, rows.dtype)) - tf.gather(sp.row_starts(), rows)
    return tf.cast(tf.stack([rows, columns], axis=1), tf.int64)


def _same(table: Table, positions: tf.Tensor, others: tf.Tensor) -> list[tf.Operation]:
    """Checks that weights have the same positions (row, column) as the ids."""
    rule = (
        "sp_weights must have one weight per id of sp_ids, at the same position; for "
        f"the table {table.name} received"
    )
    # Numbers may differ, too: compare the positions that both have.
    ids, weights = (tf.shape(each)[0] for each in (positions, others))
    fewer = tf.minimum(ids, weights)
    same = tf.reduce_all(tf.equal(positions[:fewer], others[:fewer]), axis=1)
    different = tf.boolean_mask(tf.range(fewer), ~same)[:1]
    return [
        *_assert(tf.equal(ids, weights), rule, ids, "ids and", weights, "weights"),
        *_assert(
            tf.reduce_all(same),
            rule,
            "an id at [row, column]",
            tf.gather(positions, different),
            "and its weight at",
            tf.gather(others, different),
        ),
    ]


def _extent(sp: Any) -> str:
    return f"{sp.values.shape} (in a {sp.shape} matrix)"
