"""Variables that a step uses by their rows alone, and the rows that it looks up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.graph.tasks import WORKER, task_at
from tfdist.graph.used_inputs import dependents_of, used_inputs

_GATHER = "ResourceGather"
_BY_ROW = frozenset(
    {
        _GATHER,
        "ResourceScatterAdd",
        "ResourceScatterNdAdd",
        "ResourceScatterNdSub",
        "ResourceScatterNdUpdate",
        "ResourceScatterSub",
        "ResourceScatterUpdate",
    }
)
# TensorFlow counts them among the stateful ones; they give the same whenever they run.
_REPEATABLE = frozenset({"Assert", "LookupTableFindV2", "Placeholder"})


@dataclass(frozen=True)
class Lookups:
    """The use of a variable by its rows in a step.

    Attributes:
        placeholder: The name of the placeholder of its handle in the step.
        device: The device of the variable.
        ids: The names of the tensors with the rows that are looked up.
    """

    placeholder: str
    device: str
    ids: tuple[str, ...]


def lookups_of(
    ops: Sequence[tf.Operation], homes: Mapping[str, str]
) -> dict[str, Lookups]:
    """Returns the use of each variable that a step uses by its rows alone.

    Variables whose rows depend on an operation that must not run twice, such as a random
    one, are left out.
    """
    uses: dict[str, list[tf.Operation]] = {}
    stateful = (
        op for op in ops if op.op_def.is_stateful and op.type not in _REPEATABLE
    )
    unrepeatable = dependents_of(stateful)
    for op in ops:
        for name in dict.fromkeys(each.op.name for each in used_inputs(op)):
            if name in homes:
                uses.setdefault(name, []).append(op)
    found = {}
    for name, of_variable in uses.items():
        ids = [op.inputs[1] for op in of_variable if op.type == _GATHER]
        if (
            all(op.type in _BY_ROW or _is_for_shape(op) for op in of_variable)
            and task_at(homes[name]) != WORKER
            # With batch dimensions, an id is no row of the variable.
            and all(op.node_def.attr["batch_dims"].i == 0 for op in of_variable)
            and unrepeatable.isdisjoint(each.op for each in ids)
        ):
            names = tuple(dict.fromkeys(each.name for each in ids))
            found[name] = Lookups(name, homes[name], names)
    return found


def _is_for_shape(op: tf.Operation) -> bool:
    """Returns True if an operation reads a whole variable, to know its shape."""
    return op.type in ("ReadVariableOp", "Identity") and all(
        each.type == "Shape" or _is_for_shape(each)
        for each in op.outputs[0].consumers()
    )
