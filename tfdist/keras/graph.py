"""Traces the tensors of a graph back to where they come from."""

from typing import Any

import tensorflow as tf


def is_symbolic(tensor: Any) -> bool:
    """Returns whether a tensor belongs to a graph, in contrast to an eager tensor."""
    return not hasattr(tensor, "numpy")


def function_being_traced() -> tf.Graph:
    """Returns the default graph or, if it is a branch or a loop, that of its function."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph


def inputs_of(tensor: Any) -> list[Any]:
    """Returns the tensors that a tensor is computed from.

    For a tensor captured from an outer graph, that is the outer tensor.
    """
    op = tensor.op
    if op.type != "Placeholder":
        return list(op.inputs)
    captures = getattr(op.graph, "captures", ())
    return [outer for outer, inner in captures if inner is tensor]


def handle_of(read: tf.Operation) -> Any:
    """Returns the eager handle of the variable that an operation reads."""
    handle = read.inputs[0]
    while is_symbolic(handle) and (outer := inputs_of(handle)):
        handle = outer[0]
    return handle
