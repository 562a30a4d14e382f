"""Decides which operations of a step have copies, so that several steps are one function.

A copy of an operation is an operation of its own. That changes nothing if it has no
state, or has it in a variable or table, which its copies share. But a random operation
with a seed begins its stream of numbers anew in each copy, in each function and on each
worker. So copies draw without the seed, each from another stream. A step with any other
state of its own is not copied: each message has one.

A function, a branch or a loop inside a step may draw, too. Others may call the same function
with its seed, so a step calls a copy of it.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist._support.types import GraphDef, NodeDef
from tfdist.graph.draws import RANDOM, is_seeded
from tfdist.graph.functions import all_called, all_nodes, function_attrs, library_of

# TensorFlow counts them among the stateful ones, for what they show, or for a resource
# that they find by its name or make for one use.
_WITHOUT_STATE = frozenset(
    {
        "Assert",
        "CheckNumerics",
        "CheckNumericsV2",
        "EagerPyFunc",
        "Placeholder",
        "Print",
        "PrintV2",
        "PyFunc",
        "SummaryWriter",
        "TensorArrayV3",
        "Timestamp",
        "VarHandleOp",
        "VariableV2",
    }
)


def without_seeds(definition: GraphDef) -> list[Any]:
    """Makes the random operations of a `GraphDef` draw from streams of their own.

    So do those of the functions that it calls, which get other names.

    Returns:
        The functions with another name: a `FunctionDef` each, unknown to TensorFlow.
    """
    library = library_of(definition)
    seeded = {
        name
        for name, function in library.items()
        if any(map(is_seeded, function.node_def))
    }
    copied = seeded | {
        name
        for name, function in library.items()
        if not seeded.isdisjoint(all_called(function.node_def, library))
    }
    names = {name: f"{name}_without_seeds" for name in copied}
    made = [library[name] for name in sorted(copied)]
    for each in made:
        each.signature.name = names[each.signature.name]
        _without_seeds(each.node_def, names)
    # A gradient is found by the name of its function.
    for each in definition.library.gradient:
        each.function_name = names.get(each.function_name, each.function_name)
        each.gradient_func = names.get(each.gradient_func, each.gradient_func)
    _without_seeds(definition.node, names)
    return made


def _without_seeds(nodes: Any, names: Mapping[str, str]) -> None:
    """Takes the seeds of some nodes, and has them call functions by other names."""
    for node in nodes:
        if is_seeded(node):
            node.attr["seed"].i = node.attr["seed2"].i = 0
        for function in function_attrs(node):
            function.name = names.get(function.name, function.name)


def kept_and_seeded(graph: tf.Graph) -> tuple[set[str], set[str]]:
    """Returns the types of operations that keep a state, and of those that lose seeds.

    Args:
        graph: The graph of a step. Branches, loops and functions in it count too.
    """
    # Once for both, because TensorFlow copies the whole graph.
    nodes = list(all_nodes(graph.as_graph_def()))
    kept = {node.op for node in nodes if _has_state(node, graph)}
    return kept, {node.op for node in nodes if is_seeded(node)}


def _has_state(node: NodeDef, graph: tf.Graph) -> bool:
    """Returns True if an operation keeps something that its next run uses."""
    if node.op in RANDOM or node.op in _WITHOUT_STATE or any(function_attrs(node)):
        return False
    definition = graph.op_def_for_type(node.op)
    shared = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
    # Copies share the state behind a handle: only that of the operation itself counts.
    return bool(definition.is_stateful) and not any(
        each.type in shared or each.is_ref for each in definition.input_arg
    )
