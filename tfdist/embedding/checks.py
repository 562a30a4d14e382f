"""What a lookup can be asked for, and words for what it cannot."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.embedding import routing
from tfdist.embedding.differentiable import computing_dtype
from tfdist.parameter_server.partitioned import PartitionedVariable

COMBINERS = ("mean", "sqrtn", "sum")


class Table(NamedTuple):
    """An embedding table that is spread over shards.

    Attributes:
        params: The shards, each `[rows, dim]`; a variable in shards as a whole.
        sizes: The rows of each shard.
        dim: The width of a row.
        dtype: Of the rows.
        name: For errors.
    """

    params: Any
    sizes: list[int]
    dim: int
    dtype: tf.DType
    name: str

    @property
    def num_rows(self) -> int:
        """The rows of all shards."""
        return sum(self.sizes)


class Bag(NamedTuple):
    """The ids of a batch.

    Attributes:
        ids: Of all rows, in their order, `[n]`.
        segments: The row of each, ascending, int64.
        weights: The weight of each, or None for ones.
        num_segments: The rows of the batch, int64.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    weights: tf.Tensor | None
    num_segments: tf.Tensor


def table(params: Any, partition_strategy: str) -> Table:
    """Returns the table of one or several shards.

    Raises:
        ValueError: If there is no shard, the shards do not fit each other or the
            strategy, or there is no such strategy.
    """
    _one_of("partition_strategy", partition_strategy, routing.STRATEGIES)
    if isinstance(params, _tf.ShardedVariable):
        if partition_strategy != "div":
            raise ValueError(
                "TensorFlow splits a ShardedVariable with partition_strategy='div'; "
                f"received {partition_strategy!r}"
            )
        params = params.variables
    if isinstance(params, keras.Variable):
        params = params._value
    if isinstance(params, PartitionedVariable):
        return _partitioned(params, partition_strategy)
    shards = list(params) if isinstance(params, (list, tuple)) else [params]
    if not shards:
        raise ValueError("params has no shard: pass the table's tf.Variables in a list")
    shards = [_shard(each) for each in shards]
    name = _name(shards[0])
    shapes = [tuple(shard.shape) for shard in shards]
    if any(len(shape) != 2 or None in shape for shape in shapes):
        raise ValueError(
            f"each shard of {name} has a known shape [rows, dim]; received {shapes}"
        )
    dtypes = sorted({shard.dtype.base_dtype.name for shard in shards})
    if len({shape[1] for shape in shapes}) > 1 or len(dtypes) > 1:
        raise ValueError(
            f"the shards of {name} differ only in their number of rows; received the "
            f"shapes {shapes} and dtypes {dtypes}"
        )
    dtype = tf.as_dtype(dtypes[0])
    if not dtype.is_floating:
        raise ValueError(f"the rows of {name} are of a float dtype, not {dtype.name}")
    sizes = [shape[0] for shape in shapes]
    expected = routing.shard_sizes(sum(sizes), len(shards))
    if sizes != expected:
        raise ValueError(
            f"partition_strategy={partition_strategy!r} spreads the {sum(sizes)} rows "
            f"of {name} over {len(shards)} shards of {expected} rows; received {sizes}"
        )
    return Table(shards, sizes, shapes[0][1], dtype, name)


def _partitioned(variable: PartitionedVariable, partition_strategy: str) -> Table:
    if variable.partition.axis or variable.shape.rank != 2:
        raise ValueError(
            f"{variable.name} of shape {tuple(variable.shape)} is split along axis "
            f"{variable.partition.axis}: a lookup needs a matrix that is split by rows"
        )
    if partition_strategy != variable.layout.partition_strategy:
        raise ValueError(
            f"{variable.name} is split with partition_strategy="
            f"{variable.layout.partition_strategy!r}; received {partition_strategy!r}"
        )
    sizes = list(variable.partition.sizes)
    return Table(variable, sizes, variable.shape[1], variable.dtype, variable.name)


def partition_strategy(name: str) -> str:
    """Returns the strategy, `"div"` or `"mod"`.

    Raises:
        ValueError: If there is no such strategy.
    """
    return _one_of("partition_strategy", name, routing.STRATEGIES)


def combiner(name: str | None) -> str:
    """Returns the combiner, `"mean"` where none is given.

    Raises:
        ValueError: If there is no such combiner.
    """
    return _one_of("combiner", "mean" if name is None else name, COMBINERS)


def max_norm(value: float | None) -> float | None:
    """Returns the norm that rows are shortened to.

    Raises:
        ValueError: If it is not positive.
    """
    if value is not None and not value > 0:
        raise ValueError(f"max_norm is None or a positive number; received {value!r}")
    return value


def bag(table: Table, sp_ids: Any, sp_weights: Any) -> Bag:
    """Returns the ids of a batch, which are checked where the step runs.

    A step with ids out of range, or with weights of other ids, raises
    `tf.errors.InvalidArgumentError`.

    Raises:
        TypeError: If `sp_ids` is neither a `SparseTensor` nor a `RaggedTensor`, or
            `sp_weights` is of another type.
        ValueError: If they are not matrices, or the weights are of another shape.
    """
    if not isinstance(sp_ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"sp_ids is a tf.SparseTensor or tf.RaggedTensor; received {type(sp_ids)}"
        )
    if sp_weights is not None and type(sp_weights) is not type(sp_ids):
        raise TypeError(
            f"sp_weights is None or, as sp_ids, a {type(sp_ids).__name__}; received "
            f"{type(sp_weights)}"
        )
    if sp_ids.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"sp_ids are int32 or int64; received {sp_ids.dtype.name}")
    if sp_ids.shape.rank != 2:
        raise ValueError(
            f"sp_ids is a matrix, the ids of a row in a row; received the shape "
            f"{sp_ids.shape}"
        )
    valid = [_ids_in_range(sp_ids.values, table.num_rows, table.name)]
    if isinstance(sp_ids, tf.SparseTensor):
        segments, num_segments = sp_ids.indices[:, 0], sp_ids.dense_shape[0]
        valid.append(_ascending(table, segments))
    else:
        segments, num_segments = sp_ids.value_rowids(), sp_ids.nrows()
    weights = None
    if sp_weights is not None:
        valid.append(_weights_fit(table, sp_ids, sp_weights))
        weights = sp_weights.values
    with tf.control_dependencies([each for each in valid if each is not None]):
        ids = tf.identity(sp_ids.values)
        if weights is not None:
            weights = tf.cast(tf.identity(weights), computing_dtype(table.dtype))
    return Bag(
        ids, tf.cast(segments, tf.int64), weights, tf.cast(num_segments, tf.int64)
    )


def positive(**values: int) -> None:
    """Checks that these are whole numbers from 1.

    Raises:
        ValueError: If one is not.
    """
    for argument, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument} is a whole number from 1; received {value!r}")


def ids_in_range(ids: Any, num_rows: int, name: str) -> tf.Tensor:
    """Returns the ids, which are checked where the step runs.

    A step with an id that is not a row of the table raises
    `tf.errors.InvalidArgumentError`.
    """
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        ids = tf.cast(ids, tf.int32)
    with tf.control_dependencies(_present(_ids_in_range(ids, num_rows, name))):
        return tf.identity(ids)


def bags(inputs: Any, weights: Any, padding: int) -> tuple[Any, Any]:
    """Returns ids and their weights, both ragged or both sparse, from any kind.

    Args:
        inputs: Ids: ragged, sparse, or a dense matrix that is filled up.
        weights: Of the same kind and shape, or None.
        padding: What a dense matrix is filled up with.

    Raises:
        ValueError: If a dense matrix is none, or the weights are of another shape.
    """
    if isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
        return inputs, weights
    ids = tf.convert_to_tensor(inputs)
    if not ids.dtype.is_integer:
        ids = tf.cast(ids, tf.int64)
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int64)
    if ids.shape.rank != 2:
        raise ValueError(
            "bags of ids are a tensor [batch, any], ragged, sparse or filled up with "
            f"{padding}; received the shape {ids.shape}"
        )
    is_id = tf.not_equal(ids, tf.cast(padding, ids.dtype))
    if weights is not None:
        weights = tf.convert_to_tensor(weights)
        if not ids.shape.is_compatible_with(weights.shape):
            raise ValueError(
                f"weights are of the shape of the ids, {ids.shape}; received "
                f"{weights.shape}"
            )
        weights = tf.ragged.boolean_mask(weights, is_id)
    return tf.ragged.boolean_mask(ids, is_id), weights


def _present(checks: tf.Operation | None) -> list[tf.Operation]:
    # An assertion that has run already is None.
    return [] if checks is None else [checks]


def _ids_in_range(ids: tf.Tensor, num_rows: int, name: str) -> tf.Operation | None:
    inside = (ids >= 0) & (tf.cast(ids, tf.int64) < num_rows)
    return tf.debugging.Assert(
        tf.reduce_all(inside),
        [
            f"ids of the table {name} are from 0 to {num_rows - 1}; received, among "
            "others,",
            tf.boolean_mask(ids, ~inside)[:3],
        ],
    )


def _ascending(table: Table, segments: tf.Tensor) -> tf.Operation | None:
    return tf.debugging.Assert(
        tf.reduce_all(segments[1:] >= segments[:-1]),
        [
            f"sp_ids of the table {table.name} are not in the order of their rows; "
            "pass tf.sparse.reorder(sp_ids), and the weights in the same order"
        ],
    )


def _weights_fit(table: Table, sp_ids: Any, sp_weights: Any) -> tf.Operation | None:
    if not sp_weights.dtype.is_floating:
        raise TypeError(f"sp_weights are floats; received {sp_weights.dtype.name}")
    if not sp_ids.shape.is_compatible_with(
        sp_weights.shape
    ) or not sp_ids.values.shape.is_compatible_with(sp_weights.values.shape):
        raise ValueError(
            f"sp_weights has one weight for each of sp_ids: received "
            f"{_extent(sp_weights)} weights for {_extent(sp_ids)} ids of the table "
            f"{table.name}"
        )
    if isinstance(sp_ids, tf.RaggedTensor):
        return _same(table, sp_ids.row_splits, sp_weights.row_splits)
    return _same(table, sp_ids.indices, sp_weights.indices)


def _same(table: Table, places: tf.Tensor, others: tf.Tensor) -> tf.Operation | None:
    ids, weights = (tf.shape(each)[0] for each in (places, others))
    fewer = tf.minimum(ids, weights)
    same = tf.equal(places[:fewer], tf.cast(others[:fewer], places.dtype))
    return tf.debugging.Assert(
        tf.reduce_all(same) & tf.equal(ids, weights),
        [
            f"sp_weights has one weight for each of sp_ids, at the same place; of the "
            f"table {table.name} received places",
            tf.shape(places),
            "of ids and",
            tf.shape(others),
            "of weights, or others of that shape",
        ],
    )


def _extent(sp: Any) -> str:
    return f"{sp.values.shape} (in a {sp.shape} matrix)"


def _shard(shard: Any) -> tf.Variable | tf.Tensor:
    if isinstance(shard, keras.Variable):
        shard = shard._value
    return shard if isinstance(shard, tf.Variable) else tf.convert_to_tensor(shard)


def _name(shard: tf.Variable | tf.Tensor) -> str:
    name = shard.name if isinstance(shard, tf.Variable) else "params"
    return str(name.removesuffix(":0"))


def _one_of(argument: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(
            f"{argument} is one of {', '.join(allowed)}; received {value!r}"
        )
    return value
