"""Finds variables that a step moves to a value from before its own last write.

A layer that scales its weight for the forward pass, and then puts it back, does so. Other
workers read the scaled weight, and to put it back erases what they have added since.

The gradient of a weight is no value of it, though it was computed from an older read.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.steps.mixed_writes import ADDS, READS, SETS

# What these return is a value of a variable if an input is.
_KEPT_BY = re.compile(
    "Add(N|V2)?|Cast|ConcatV2|DivNoNan|DynamicStitch|EnsureShape|IdentityN?|Maximum|"
    "Minimum|Mul|Neg|Pack|RealDiv|Reshape|Select(V2)?|Slice|SplitV?|StopGradient|"
    "StridedSlice|Sub|Transpose|Unpack"
)
_WRITES = ("Assign", "ResourceApply", "ResourceS")
_OF_A_GRADIENT = re.compile(r"(^|/)gradient(s|_tape)/")

# An operation, and those that call its function, from the outermost inwards.
_Called = tuple[tf.Operation, ...]
# A graph and an index in it, for each of these.
_Place = list[tuple[Any, int]]


def moved_to_older_reads(handles: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns those variables that a graph moves to a value which it read before a write.

    Args:
        handles: The placeholders of the variables' handles in the graph.
    """
    order: dict[Any, dict[str, int]] = {}
    return [each for each in handles if _is_moved_to_older_read(each, order)]


def _is_moved_to_older_read(
    handle: tf.Tensor, order: dict[Any, dict[str, int]]
) -> bool:
    writes = [each for each in _uses(handle, ()) if each[-1].type.startswith(_WRITES)]
    if len(writes) < 2:
        return False
    written = [_place(each, order) for each in writes]
    for write in writes:
        kind, value = write[-1].type, write[-1].inputs[-1]
        if kind not in ADDS | SETS:
            continue
        reads = [_place(each, order) for each in _reads(value, write[:-1], handle)]
        # An addition is a move if it is the difference of two reads.
        moved_from = [_place(write, order)] if kind in SETS else reads
        for then in reads:
            later = [each for each in written if _precedes(then, each)]
            if any(_precedes(each, now) for each in later for now in moved_from):
                return True
    return False


def _uses(tensor: tf.Tensor, calls: _Called) -> Iterator[_Called]:
    for op in tensor.consumers():
        inner = list(_tf.inputs_of_functions(op, tensor))
        if not inner:
            yield (*calls, op)
        for each in inner:
            yield from _uses(each, (*calls, op))


def _reads(value: tf.Tensor, calls: _Called, handle: tf.Tensor) -> Iterator[_Called]:
    """Yields the reads of a variable of which a tensor is still a value."""
    pending, seen = [(value, calls)], set()
    while pending:
        tensor, calls = pending.pop()
        op = tensor.op
        key = (*(each.name for each in calls), tensor.name)
        if key in seen or _OF_A_GRADIENT.search(op.name):
            continue
        seen.add(key)
        if op.type in READS:
            if _outermost(op.inputs[0], calls) is handle:
                yield (*calls, op)
        elif op.type == "Placeholder":
            pending += _given(tensor, calls)
        elif _KEPT_BY.fullmatch(op.type):
            pending += [(each, calls) for each in op.inputs]
        else:
            for graph, _ in _tf.functions_of(op):
                # The condition of a loop has one output, which no loop returns.
                if len(graph.outputs) == len(op.outputs):
                    output = graph.outputs[tensor.value_index]
                    pending.append((output, (*calls, op)))


def _given(tensor: tf.Tensor, calls: _Called) -> list[tuple[tf.Tensor, _Called]]:
    """Returns what a call gave for an input of its function, in the caller's graph."""
    if not calls:
        return []
    *outer, call = calls
    return [
        (each, tuple(outer))
        for graph, given in _tf.functions_of(call)
        for inner, each in zip(graph.inputs, given, strict=False)
        if inner is tensor
    ]


def _outermost(handle: tf.Tensor, calls: _Called) -> tf.Tensor:
    while given := _given(handle, calls):
        [(handle, calls)] = given
    return handle


def _place(called: _Called, order: dict[Any, dict[str, int]]) -> _Place:
    # TensorFlow runs the operations on a variable in the order of their creation.
    for graph in (each.graph for each in called if each.graph not in order):
        order[graph] = {op.name: i for i, op in enumerate(graph.get_operations())}
    return [(each.graph, order[each.graph][each.name]) for each in called]


def _precedes(one: _Place, other: _Place) -> bool:
    """Returns True if an operation runs before another, not in another branch."""
    for (graph, i), (other_graph, j) in zip(one, other, strict=False):
        if graph is not other_graph:
            return False
        if i != j:
            return i < j
    return False
