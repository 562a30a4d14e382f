"""Checks the tables and options of lookups."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.embedding import routing
from tfdist.placement.partition import even_sizes
from tfdist.placement.partitioners import Partitioner
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.shard_layout import DIV, MOD

COMBINERS = ("mean", "sqrtn", "sum")


class Table(NamedTuple):
    """An embedding table in shards, each `[rows, dim]`, or one `PartitionedVariable`.

    `sizes` are the numbers of rows of the shards.
    """

    params: Any
    sizes: list[int]
    dim: int
    dtype: tf.DType
    name: str
    partition_strategy: str

    @property
    def num_rows(self) -> int:
        """The number of rows of all shards."""
        return sum(self.sizes)


def table(params: Any, strategy: str | None = None) -> Table:
    """Returns the table of one or several shards.

    The default layout is that of a sharded variable, and `"mod"` for anything else.
    Raises ValueError if the shards do not fit each other or the layout.
    """
    if strategy is not None:
        partition_strategy(strategy)
    if isinstance(params, _tf.ShardedVariable):
        if strategy not in (None, DIV):
            raise ValueError(
                "TensorFlow splits a ShardedVariable with partition_strategy='div'; "
                f"received {strategy!r}"
            )
        params, strategy = params.variables, DIV
    if isinstance(params, _tf.V1PartitionedVariable):
        params = _rows_of(params)
    if isinstance(params, keras.Variable):
        params = _tf.value_of(params)
    if isinstance(params, PartitionedVariable):
        return _partitioned(params, strategy)
    shards = list(params) if isinstance(params, (list, tuple)) else [params]
    if not shards or any(each is None for each in shards):
        raise ValueError(
            "params must be the shards of a table, a list of tf.Variables, or one "
            f"sharded variable; received {params!r}"
        )
    strategy = strategy or MOD
    shards = [_shard(each) for each in shards]
    name = _name(shards[0])
    sizes, dim, dtype = _measured(shards, name)
    # Both layouts give an extra row to the first shards, so one check serves both.
    expected = even_sizes(sum(sizes), len(shards))
    if sizes != expected:
        raise ValueError(
            f"partition_strategy={strategy!r} gives the {len(shards)} shards of {name} "
            f"{expected} of its {sum(sizes)} rows; received shards of {sizes} rows"
        )
    return Table(shards, sizes, dim, dtype, name, strategy)


def _measured(shards: Sequence[Any], name: str) -> tuple[list[int], int, tf.DType]:
    """Returns the rows of each shard, and the width and the dtype of all of them."""
    shapes = [tuple(shard.shape) for shard in shards]
    if any(len(shape) != 2 or None in shape for shape in shapes):
        raise ValueError(
            f"each shard of {name} must have a static shape [rows, dim]; received "
            f"{shapes}"
        )
    # A TF1 variable without a resource has a reference dtype, such as float32_ref.
    dtypes = sorted({shard.dtype.base_dtype.name for shard in shards})
    if len({shape[1] for shape in shapes}) > 1 or len(dtypes) > 1:
        raise ValueError(
            f"the shards of {name} may differ only in their number of rows; received "
            f"the shapes {shapes} and dtypes {dtypes}"
        )
    dtype = tf.as_dtype(dtypes[0])
    if not dtype.is_floating:
        raise ValueError(
            f"the rows of {name} must have a float dtype, not {dtype.name}"
        )
    return [shape[0] for shape in shapes], shapes[0][1], dtype


def _rows_of(variable: Any) -> list[tf.Variable]:
    shards = list(variable)
    if any(shard.shape[1:] != variable.shape[1:] for shard in shards):
        raise ValueError(
            f"{variable.name} of shape {tuple(variable.shape)} is not split along axis "
            f"0 but into the shapes {[tuple(shard.shape) for shard in shards]}: a "
            "lookup needs a matrix that is split by rows"
        )
    return shards


def _partitioned(variable: PartitionedVariable, strategy: str | None) -> Table:
    if variable.partition.axis or variable.shape.rank != 2:
        raise ValueError(
            f"{variable.name} of shape {tuple(variable.shape)} is split along axis "
            f"{variable.partition.axis}: a lookup needs a matrix that is split by rows"
        )
    own = variable.layout.partition_strategy
    if strategy not in (None, own):
        raise ValueError(
            f"{variable.name} is split with partition_strategy={own!r}; received "
            f"{strategy!r}. Omit the argument: a sharded variable knows its layout"
        )
    sizes = list(variable.partition.sizes)
    return Table(variable, sizes, variable.shape[1], variable.dtype, variable.name, own)


def partition_strategy(name: str) -> str:
    """Returns the row layout, `"div"` or `"mod"`, or raises ValueError."""
    return _one_of("partition_strategy", name, routing.STRATEGIES)


def combiner(name: str | None) -> str:
    """Returns the combiner, by default `"mean"`, or raises ValueError."""
    return _one_of("combiner", "mean" if name is None else name, COMBINERS)


def max_norm(value: float | None) -> float | None:
    """Returns the maximum norm of a row, or None; raises ValueError unless positive."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise ValueError(
            f"max_norm must be None or a positive number; received {value!r}"
        )
    return value


def aggregate(value: bool | None) -> bool | None:
    """Returns True if the ps sum, or None to choose by the cost model."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"aggregate must be True, False or None; received {value!r}")
    return value


def padding(value: int) -> int:
    """Returns the id that pads rows, or raises ValueError if it is no whole number."""
    # A bool is an integer in Python: True would be taken for the id 1.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(
            "padding must be the id that pads rows, a whole number such as -1; "
            f"received {value!r}"
        )
    return int(value)


def partitioner(value: Partitioner | None) -> Partitioner | None:
    """Returns the partitioner, or raises TypeError if it is not a function."""
    if value is not None and not callable(value):
        raise TypeError(
            "partitioner must be None or a function of a shape and a dtype, such as "
            f"tfdist.FixedShardsPartitioner(2); received {value!r}"
        )
    return value


def positive(**values: int) -> None:
    """Raises ValueError unless all arguments are positive whole numbers."""
    for argument, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{argument} must be a positive whole number; received {value!r}"
            )


def _shard(shard: Any) -> tf.Variable | tf.Tensor:
    if isinstance(shard, keras.Variable):
        shard = _tf.value_of(shard)
    return shard if isinstance(shard, tf.Variable) else tf.convert_to_tensor(shard)


def _name(shard: tf.Variable | tf.Tensor) -> str:
    name = shard.name if isinstance(shard, tf.Variable) else "params"
    return str(name.removesuffix(":0"))


def _one_of(argument: str, value: str, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"{argument} must be one of {', '.join(allowed)}; received {value!r}"
        )
    return value
