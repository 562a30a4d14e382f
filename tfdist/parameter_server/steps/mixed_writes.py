"""Finds variables to which a step adds, and which it also sets.

Between the two, other workers add too: what they have added is lost, or used twice. The
usual case is gradients that are accumulated by hand. A moving average is neither an
addition nor a setting, since `tfdist.variables.increment` makes it a move towards a value.
"""

from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras.captures import uses

_READS = frozenset({"ReadVariableOp", "ResourceGather"})
_ADDS = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "ResourceScatterNdAdd",
        "ResourceScatterNdSub",
    }
)
_SETS = frozenset(
    {
        "AssignVariableOp",
        "ResourceScatterNdUpdate",
        "ResourceScatterUpdate",
        "ResourceStridedSliceAssign",
    }
)


def added_to_and_set(
    handles: Iterable[tf.Tensor], trainable: Collection[str] = ()
) -> list[tf.Tensor]:
    """Returns the variables that a graph adds to, and also sets or clears.

    Args:
        handles: The placeholders of the variables' handles in the graph.
        trainable: The names of those of trainable variables. What sets such a variable
            may have become a move; no optimizer updates it.
    """
    values: dict[Any, dict[str, int]] = {}
    return [
        each
        for each in handles
        if _is_added_to_and_set(each, values, each.name in trainable)
    ]


def _is_added_to_and_set(
    handle: tf.Tensor, values: dict[Any, dict[str, int]], is_trainable: bool
) -> bool:
    ops = list(uses(handle))
    moves = [op for op in ops if op.type in _ADDS and _moves(op)]
    sets = [op for op in ops if op.type in _SETS or (is_trainable and op in moves)]
    adds = [op for op in ops if op.type in _ADDS and op not in moves]
    # To subtract from a variable what it was is to clear it.
    clears = [op for op in adds if _depends_on_own_value(op, values)]
    return len(adds) > len(clears) and bool(sets or clears)


def _moves(op: tf.Operation) -> bool:
    """Returns True if an operation adds a difference from what the variable was."""
    [*_, delta] = op.inputs
    of = _source(delta)
    return of.type == "Sub" and _reads(_source(of.inputs[1]), op)


def _depends_on_own_value(op: tf.Operation, values: dict[Any, dict[str, int]]) -> bool:
    if op.graph not in values:
        values[op.graph] = _variables_behind(op.graph)
    known = values[op.graph]
    return bool(known[op.inputs[-1].op.name] & known.get(_of_variable(op), 0))


def _variables_behind(graph: Any) -> dict[str, int]:
    """Returns the variables that each operation is computed from, and each one's bit.

    One pass, however many variables there are. `_of_variable` has the key of a bit.
    """
    behind: dict[str, int] = {}
    bits: dict[str, int] = {}
    for op in graph.get_operations():
        found = 0
        if op.type in _READS:
            found = bits.setdefault(_of_variable(op), 1 << len(bits))
        for each in op.inputs:
            found |= behind.get(each.op.name, 0)
        behind[op.name] = found
    return behind | bits


def _of_variable(op: tf.Operation) -> str:
    # The name of a tensor, which has a colon as that of no operation does.
    return str(op.inputs[0].name)


def _reads(op: tf.Operation, write: tf.Operation) -> bool:
    return op.type in _READS and op.inputs[0] is write.inputs[0]


def _source(tensor: tf.Tensor) -> tf.Operation:
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op
