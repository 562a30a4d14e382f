"""What is known of a Keras variable while it is created, and no one else is told.

Keras creates a `tf.Variable` from a function, without its path or its initializer;
the hooks note both here for the strategy to see.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.partition import Shard
from tfdist.parameter_server.placement import VariableSpec

variable_path: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "variable_path", default=None
)
"""The path of the Keras variable that is being created, where Keras creates one."""

variable_initializer: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "variable_initializer", default=None
)
"""Its Keras initializer, where it has one."""

_partitioner: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "partitioner", default=None
)


@contextlib.contextmanager
def partition_variables(partitioner: Any) -> Iterator[None]:
    """Splits the Keras variables that are created in this scope over several ps.

    It takes the place of the strategy's own partitioner; a `Planned` placement, which
    knows every variable, takes precedence. Optimizer slots are split as their weights
    are, wherever they are created.

    Args:
        partitioner: One of `tf.distribute.experimental.partitioners`, of tfdist's own,
            or any function as these.
    """
    token = _partitioner.set(partitioner)
    try:
        yield
    finally:
        _partitioner.reset(token)


def requested_partitioner() -> Any:
    """The partitioner of the innermost `partition_variables`, if there is one."""
    return _partitioner.get()


def shard_name(name: str, axis: int, shard: Shard) -> str:
    """Names a shard by its indices: `table[0:500]`, `kernel[:, 8:16]`."""
    return f"{name}[{':, ' * axis}{shard.start}:{shard.stop}]"


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
