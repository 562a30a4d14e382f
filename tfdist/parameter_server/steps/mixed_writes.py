"""Finds variables to which a step adds, and which it also sets.

Between the two, other workers add too: what they have added is lost, or used twice. The
usual case is gradients that are accumulated by hand. A moving average is neither an
addition nor a setting, since `tfdist.variables.increment` makes it a move towards a value.
"""

import tensorflow as tf

from tfdist.keras.captures import uses
from tfdist.parameter_server.step_graph.used_inputs import sources_of

ADDS = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "ResourceScatterNdAdd",
        "ResourceScatterNdSub",
    }
)
READS = frozenset({"ReadVariableOp", "ResourceGather"})
SETS = frozenset(
    {
        "AssignVariableOp",
        "ResourceScatterNdUpdate",
        "ResourceScatterUpdate",
        "ResourceStridedSliceAssign",
    }
)


def is_added_to_and_set(handle: tf.Tensor, is_weight: bool = False) -> bool:
    """Returns True if a graph adds to a variable, and also sets it or clears it.

    Args:
        handle: The placeholder of the variable's handle in the graph.
        is_weight: Whether the variable is trainable, so that what sets it may have become
            a move. No optimizer updates it.
    """
    ops = list(uses(handle))
    moves = [op for op in ops if op.type in ADDS and _moves(op)]
    sets = [op for op in ops if op.type in SETS or (is_weight and op in moves)]
    adds = [op for op in ops if op.type in ADDS and op not in moves]
    # To subtract from a variable what it was is to clear it.
    clears = [op for op in adds if _depends_on_own_value(op)]
    return len(adds) > len(clears) and bool(sets or clears)


def _moves(op: tf.Operation) -> bool:
    """Returns True if an operation adds a difference from what the variable was."""
    [*_, delta] = op.inputs
    of = _source(delta)
    return of.type == "Sub" and _reads(_source(of.inputs[1]), op)


def _depends_on_own_value(op: tf.Operation) -> bool:
    return any(
        _reads(each, op) for each in sources_of([op.inputs[-1].op], control=False)
    )


def _reads(op: tf.Operation, write: tf.Operation) -> bool:
    return op.type in READS and op.inputs[0] is write.inputs[0]


def _source(tensor: tf.Tensor) -> tf.Operation:
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op
