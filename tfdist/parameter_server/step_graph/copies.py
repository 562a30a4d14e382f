"""Which operations of a step may be copied, so that several steps are one function.

A copy of an operation is an operation of its own. That changes nothing if it has no
state, or has it in a variable or table, which its copies share. But a random operation
with a seed begins its stream of numbers anew in each copy, in each function and on each
worker. So copies draw without the seed, each from another stream. A step with any other
state of its own is not copied: each message has one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

_RANDOM = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
"""The operations whose only state is their place in a stream of random numbers."""

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


def without_seeds(nodes: Any) -> None:
    """Has the random operations among `NodeDef`s draw from streams of their own."""
    for node in nodes:
        if _is_seeded(node):
            node.attr["seed"].i = node.attr["seed2"].i = 0


def seeded(graph: Any) -> set[str]:
    """Returns the types of the operations of a `FuncGraph` that lose their seeds."""
    return {op.type for op in graph.get_operations() if _is_seeded(op.node_def)}


def not_copied(graph: Any) -> set[str]:
    """Returns the types of the operations of a `FuncGraph` that may not be copied.

    Args:
        graph: Of a step. Branches, loops and functions inside it count too.
    """
    definition = graph.as_graph_def()
    library = {each.signature.name: each for each in definition.library.function}
    found = {
        node.op
        for node in definition.node
        if node.op not in _RANDOM and _has_state(node, graph)
    }
    # A seed inside a function cannot be taken out: others may call the function.
    for node in _called(definition.node, library):
        if _is_seeded(node) or (node.op not in _RANDOM and _has_state(node, graph)):
            found.add(node.op)
    return found


def _called(nodes: Any, library: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the nodes of all functions that some nodes call."""
    pending = list(nodes)
    seen: set[str] = set()
    while pending:
        for name in _functions(pending.pop()):
            if name in library and name not in seen:
                seen.add(name)
                yield from library[name].node_def
                pending += library[name].node_def


def _functions(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _is_seeded(node: Any) -> bool:
    return node.op in _RANDOM and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _has_state(node: Any, graph: Any) -> bool:
    """Whether an operation keeps something that its next run uses."""
    if node.op in _WITHOUT_STATE or any(_functions(node)):
        return False
    definition = graph.op_def_for_type(node.op)
    shared = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
    return bool(definition.is_stateful) and not any(
        each.type in shared or each.is_ref for each in definition.input_arg
    )
