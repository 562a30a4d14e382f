"""What loops and branches return, read from their own graphs.

A loop is read again until what it carries from one turn to the next stays of one kind. The
loop of `tf.map_fn` over the examples is known by its lists: each turn takes the example of
its own number and puts a result in the same place.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.rows import Known, NotOwnError, same

LOOPS = frozenset(["While", "StatelessWhile"])
BRANCHES = frozenset(["If", "StatelessIf"])

_COUNTED = CONSTANTS | {Kind.COUNT, Kind.SHAPE}


Read = Callable[[Any, list[Known], set[Any]], tuple[list[Known], set[Kind]]]
"""Reads a function's graph, given its inputs, and which of them count the turns.

Returns what is known of its outputs, and the kinds that the first of them depends on.
"""


def of_loop(op: tf.Operation, given: list[Known], read: Read) -> list[Known]:
    """Returns what is known of the results of a loop.

    Args:
        op: The loop.
        given: Of its inputs.
        read: Reads its functions.
    """
    body = _tf.function_graph(op, "body")
    test = _tf.function_graph(op, "cond")
    if body is None or test is None:
        return [Known(Kind.MIXED)] * len(given)
    counters = _counters(op, body)
    is_over_examples = any(each.is_list_of_examples for each in given)
    # The number of the turn is then the position of the example.
    turn = Known(Kind.POSITIONS if is_over_examples else Kind.SAME)
    turns = [each.ref() in counters for each in body.inputs]
    known: list[Known] = []
    joined = given
    while joined != known:
        known = joined
        begun = [
            turn if is_turn else k for k, is_turn in zip(known, turns, strict=True)
        ]
        after, _ = read(body, begun, counters)
        joined = [
            one if is_turn else _joined(one, other, is_over_examples)
            for one, other, is_turn in zip(known, after, turns, strict=True)
        ]
    (goes_on,), sources = read(test, known, set())
    if goes_on.kind in CONSTANTS or (is_over_examples and sources <= _COUNTED):
        return known
    return [Known(Kind.MIXED)] * len(given)


def of_branches(op: tf.Operation, given: list[Known], read: Read) -> list[Known]:
    """Returns what is known of the results of a condition.

    Args:
        op: The condition.
        given: Of its inputs.
        read: Reads its functions.
    """
    graphs = [_tf.function_graph(op, name) for name in ("then_branch", "else_branch")]
    if None in graphs or given[0].kind not in CONSTANTS | {Kind.EXAMPLE}:
        return [Known(Kind.UNKNOWN)] * len(op.outputs)
    results = [read(graph, given[1:], set())[0] for graph in graphs]
    known = [_joined(one, other, False) for one, other in zip(*results, strict=True)]
    # Where each replica draws, they take different branches.
    is_same = given[0].kind is Kind.SAME
    numbers = {Kind.MEAN, Kind.SUM, Kind.COUNT}
    return [
        each if is_same or each.kind not in numbers else Known(Kind.UNKNOWN)
        for each in known
    ]


def _joined(before: Known, after: Known, is_over_examples: bool) -> Known:
    """Returns what is known of a value that may be one or the other."""
    kinds = {before.kind, after.kind}
    if before == after:
        return before
    if kinds <= CONSTANTS:
        return Known(Kind.DRAWN)
    if not is_over_examples:
        if kinds <= CONSTANTS | {Kind.EXAMPLE}:
            return Known(Kind.EXAMPLE)
        # A constant counts once, as in a sum of both.
        if kinds <= {Kind.SAME, Kind.MEAN}:
            return Known(Kind.MEAN)
    found = [each.rows for each in (before, after) if each.rows]
    # A list is empty at first.
    if found and kinds <= CONSTANTS | {Kind.ROWS}:
        try:
            return Known(Kind.ROWS, same(found))
        except NotOwnError:
            pass
    return Known(Kind.MIXED)


def _counters(op: tf.Operation, body: Any) -> set[Any]:
    """Returns the inputs of a loop's body that are the number of the turn, from 0."""
    found = set()
    for first, inner, after in zip(op.inputs, body.inputs, body.outputs, strict=True):
        while after.op.type == "Identity":
            after = after.op.inputs[0]
        starts = tf.get_static_value(first)
        if after.op.type not in ("AddV2", "Add") or starts is None or starts.any():
            continue
        step = tf.get_static_value(after.op.inputs[1])
        if after.op.inputs[0] is inner and step is not None and step == 1:
            found.add(inner.ref())
    return found
