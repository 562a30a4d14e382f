"""Traces the tensors of a graph back to where they come from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# Operations that computations of shapes consist of.
_FOLDED: dict[str, Callable[..., Any]] = {
    "AddV2": np.add,
    "Cast": np.asarray,
    "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "Identity": np.asarray,
    "Mul": np.multiply,
    "Pack": lambda *parts: np.stack(parts),
    "Range": np.arange,
    "Sub": np.subtract,
}
_COPIES = frozenset(["Cast", "Identity", "Placeholder"])


def is_symbolic(tensor: tf.Tensor) -> bool:
    """Returns True if a tensor belongs to a graph, in contrast to an eager tensor."""
    return not hasattr(tensor, "numpy")


def function_being_traced() -> tf.Graph:
    """Returns the default graph or, if it is a branch or a loop, that of its function."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph


def inputs_of(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tensors that a tensor is computed from.

    For a tensor captured from an outer graph, that is the outer tensor.
    """
    op = tensor.op
    if op.type != "Placeholder":
        return list(op.inputs)
    captures = getattr(op.graph, "captures", ())
    return [outer for outer, inner in captures if inner is tensor]


def handle_of(read: tf.Operation) -> tf.Tensor:
    """Returns the eager handle of the variable that an operation reads."""
    return outermost(read.inputs[0])


def outermost(handle: tf.Tensor) -> tf.Tensor:
    """Follows a handle out of nested graphs, to the eager one."""
    while is_symbolic(handle) and (outer := inputs_of(handle)):
        handle = outer[0]
    return handle


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that has the same elements, before it was cast or captured."""
    is_alike = is_symbolic(tensor) and tensor.op.type in _COPIES
    inputs = inputs_of(tensor) if is_alike else ()
    return source_of(inputs[0]) if inputs else tensor


def constant(tensor: tf.Tensor) -> Any:
    """Returns a constant of the graph as an array, or None.

    TensorFlow's own function for this does not calculate, as with a number of dimensions.
    """
    value = tf.get_static_value(tensor)
    if value is not None or not is_symbolic(tensor) or tensor.op.type not in _FOLDED:
        return value
    parts = [constant(each) for each in tensor.op.inputs]
    if any(part is None for part in parts):
        return None
    dtype = tensor.dtype.as_numpy_dtype
    return np.asarray(_FOLDED[tensor.op.type](*parts)).astype(dtype)
