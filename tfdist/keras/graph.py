"""Reading a traced step: where its tensors come from."""

from typing import Any

import tensorflow as tf


def is_symbolic(tensor: Any) -> bool:
    """Whether a tensor is of a graph, and not an eager one."""
    return not hasattr(tensor, "numpy")


def inputs_of(tensor: Any) -> list[Any]:
    """The tensors that one is computed from; of one from outside of a branch, that."""
    op = tensor.op
    if op.type != "Placeholder":
        return list(op.inputs)
    captures = getattr(op.graph, "captures", ())
    return [outer for outer, inner in captures if inner is tensor]


def handle_of(read: tf.Operation) -> Any:
    """The handle of the variable that an operation reads, outside of the graph."""
    handle = read.inputs[0]
    while is_symbolic(handle) and (outer := inputs_of(handle)):
        handle = outer[0]
    return handle
