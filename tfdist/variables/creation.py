"""Facts about the variable being created that TensorFlow's creators do not receive.

Keras creates a `tf.Variable` from a function, and passes neither the path nor the
initializer on. The hooks of `tfdist.keras` note both here, and the strategy reads them.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist.placement.variable_spec import VariableSpec
from tfdist.variables.shard_layout import DIV, MOD, ShardLayout


@dataclass(frozen=True)
class SplitRequest:
    """Request of a scope for how to split its variables.

    Attributes:
        partitioner: Returns the number of shards; None for the strategy's partitioner.
        partition_strategy: `"div"` or `"mod"`.
        rows_only: Whether they can be split by rows only.
        on_every_ps: Whether each ps has one shard of rows, whoever places variables.
    """

    partitioner: Any = None
    partition_strategy: str = DIV
    rows_only: bool = False
    on_every_ps: bool = False


@dataclass(frozen=True)
class Creation:
    """Known facts about the variable being created.

    Attributes:
        path: The path of the Keras variable, or None if it is none of Keras's.
        initializer: Its Keras initializer, or None.
        request: How the current scope splits its variables.
    """

    path: str | None = None
    initializer: keras.Initializer | None = None
    request: SplitRequest = SplitRequest()


# A context variable, because the calls between those who know and those who ask are Keras's
# and TensorFlow's.
_being_created: contextvars.ContextVar[Creation] = contextvars.ContextVar(
    "being_created",
    default=Creation(),  # noqa: B039 - it is frozen
)


def being_created() -> Creation:
    """Returns the known facts about the variable being created."""
    return _being_created.get()


def creating(**known: Any) -> AbstractContextManager[None]:
    """Notes attributes of `Creation` for the variables that are created in this scope."""
    return setting(_being_created, replace(being_created(), **known))


@contextlib.contextmanager
def partition_variables(
    partitioner: Any, partition_strategy: str = DIV, *, rows_only: bool = False
) -> Iterator[None]:
    """Splits the Keras variables that are created in this scope over several ps.

    It replaces the strategy's partitioner. A `Planned` placement takes precedence, since
    it knows every variable. Optimizer slots are split as their weights are, wherever they
    are created.

    Args:
        partitioner: One of `tf.distribute.experimental.partitioners` or of tfdist's
            partitioners, or any function with their signature.
        partition_strategy: `"div"` gives each shard contiguous rows; `"mod"` puts row i
            on shard i % n.
        rows_only: Whether a variable can be split by rows only: a partitioner that
            splits it by columns is an error, and a plan does not do so.

    Raises:
        TypeError: If `partitioner` is not callable.
        ValueError: If there is no such strategy.
    """
    check_partitioner(partitioner)
    if partition_strategy not in (DIV, MOD):
        raise ValueError(
            f"partition_strategy is {DIV} or {MOD}; received {partition_strategy!r}"
        )
    # The `mod` layout deals out rows, and has no meaning for columns.
    rows_only = rows_only or partition_strategy == MOD
    with creating(request=SplitRequest(partitioner, partition_strategy, rows_only)):
        yield


def check_partitioner(partitioner: object) -> None:
    """Checks that an object is a partitioner: a TypeError if not."""
    # Placements can be called, too, by TensorFlow 1's replica_device_setter.
    if not callable(partitioner) or hasattr(partitioner, "place"):
        raise TypeError(
            "a partitioner must be a function of a shape and a dtype, for example "
            f"tfdist.FixedShardsPartitioner(2); received {partitioner!r}. A placement is "
            "passed to a strategy by name: placement=..."
        )


def shard_name(name: str, layout: ShardLayout, index: int) -> str:
    """Names a shard by its indices: `table[0:500]`, `kernel[:, 8:16]`, `table[1::2]`."""
    if layout.partition_strategy == MOD:
        return f"{name}[{index}::{len(layout.partition.bounds)}]"
    shard = layout.partition.bounds[index]
    return f"{name}[{':, ' * layout.partition.axis}{shard.start}:{shard.stop}]"


def spec_before_creation(kwargs: dict[str, Any]) -> VariableSpec:
    """Returns the spec of a variable from the arguments of `tf.Variable`."""
    shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
    if shape is None or dtype is None:
        value = kwargs["initial_value"]
        # Keras passes a function and no shape. Tracing it gives the shape without
        # allocating or computing the value.
        with _tf.scratch_graph("variable_spec").as_default():
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
        shape, dtype = value.shape, value.dtype
    scopes = (tf.get_current_name_scope(), kwargs.get("name") or "Variable")
    name = being_created().path or "/".join(filter(None, scopes))
    return spec_of(name, shape, dtype)


def spec_of(name: str, shape: Any, dtype: Any) -> VariableSpec:
    """Returns the spec of a variable of known shape and dtype."""
    dtype = tf.as_dtype(dtype)
    return VariableSpec(
        name, tuple(tf.TensorShape(shape).as_list()), dtype.name, dtype.size
    )
