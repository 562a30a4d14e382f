"""What is known of a Keras variable while it is created, and no one else is told.

Keras creates a `tf.Variable` from a function, without its path or its initializer;
the hooks note both here for the strategy to see.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.placement.variable_spec import VariableSpec
from tfdist.variables.layout import DIV, MOD, Layout

variable_path: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "variable_path", default=None
)
"""The path of the Keras variable that is being created, where Keras creates one."""

variable_initializer: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "variable_initializer", default=None
)
"""Its Keras initializer, where it has one."""


@dataclass(frozen=True)
class Request:
    """How the variables of a scope are to be split.

    Attributes:
        partitioner: Says into how many shards; None leaves it to the strategy's own.
        partition_strategy: `"div"` or `"mod"`.
        rows_only: Whether they can be split by rows alone.
    """

    partitioner: Any = None
    partition_strategy: str = DIV
    rows_only: bool = False


_requested: contextvars.ContextVar[Request] = contextvars.ContextVar(
    "requested",
    default=Request(),  # noqa: B039 - it is frozen
)


@contextlib.contextmanager
def partition_variables(
    partitioner: Any, partition_strategy: str = DIV, *, rows_only: bool = False
) -> Iterator[None]:
    """Splits the Keras variables that are created in this scope over several ps.

    It takes the place of the strategy's own partitioner; a `Planned` placement, which
    knows every variable, takes precedence. Optimizer slots are split as their weights
    are, wherever they are created.

    Args:
        partitioner: One of `tf.distribute.experimental.partitioners`, of tfdist's own,
            or any function as these.
        partition_strategy: `"div"` gives each shard neighbours; `"mod"` deals rows out
            one by one.
        rows_only: Whether a variable can be split by rows alone: a partitioner that
            splits it by columns is refused, and a plan does not.

    Raises:
        TypeError: If `partitioner` is no function.
        ValueError: If there is no such strategy.
    """
    if not callable(partitioner):
        raise TypeError(
            "partitioner is a function of a shape and a dtype, for example "
            f"tfdist.FixedShardsPartitioner(2); received {partitioner!r}"
        )
    if partition_strategy not in (DIV, MOD):
        raise ValueError(
            f"partition_strategy is {DIV} or {MOD}; received {partition_strategy!r}"
        )
    rows_only = rows_only or partition_strategy == MOD
    token = _requested.set(Request(partitioner, partition_strategy, rows_only))
    try:
        yield
    finally:
        _requested.reset(token)


def requested() -> Request:
    """How the scope that we are in wants its variables split."""
    return _requested.get()


def shard_name(name: str, layout: Layout, index: int) -> str:
    """Names a shard by its indices: `table[0:500]`, `kernel[:, 8:16]`, `table[1::2]`."""
    if layout.partition_strategy == MOD:
        return f"{name}[{index}::{len(layout.partition.bounds)}]"
    shard = layout.partition.bounds[index]
    return f"{name}[{':, ' * layout.partition.axis}{shard.start}:{shard.stop}]"


def spec_before_creation(kwargs: dict[str, Any]) -> VariableSpec:
    """What will be created, from the arguments of `tf.Variable`."""
    shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
    if shape is None or dtype is None:
        value = kwargs["initial_value"]
        # Keras gives a function and no shape. Traced, it tells its shape without
        # the memory or the time of a value.
        with _tf.scratch_graph("variable_spec").as_default():
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
        shape, dtype = value.shape, value.dtype
    scopes = (tf.get_current_name_scope(), kwargs.get("name") or "Variable")
    name = variable_path.get() or "/".join(filter(None, scopes))
    return spec_of(name, shape, dtype)


def spec_of(name: str, shape: Any, dtype: Any) -> VariableSpec:
    """Returns the spec of a variable of known shape and dtype."""
    dtype = tf.as_dtype(dtype)
    return VariableSpec(
        name, tuple(tf.TensorShape(shape).as_list()), dtype.name, dtype.size
    )
