"""Which writes of a traced step can undo another worker's.

A tensor is known by the set of resources that it was computed from. It spreads from
the captured handles through every operation and function body, so that a write whose
value has the written resource in its set is a read, then a write.
"""

import graphlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Origins = frozenset[str]
NOTHING: Origins = frozenset()

# They tell of a tensor's shape, and not of its value.
SHAPE_OPS = {"Shape", "ShapeN", "Size", "Rank", "VariableShape"}
# They hold the variable's lock shared: one undoes another on the same row.
UNLOCKED_WRITES = {"ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"}
LOCKED_IF_ASKED = {"ResourceScatterNdAdd", "ResourceScatterNdSub"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}
PLACES = ("ps", "worker")


def task_of(op: tf.Operation) -> str:
    """Where an operation runs, by its device alone: `ps0`, say, or `worker`."""
    spec = tf.DeviceSpec.from_string(op.device)
    return f"{spec.job}{spec.task}" if spec.job == "ps" else "worker"


def problems(
    function: Any,
    allowed: Sequence[str] = (),
    under_key: Sequence[str] = (),
    of_new_rows: Sequence[str] = (),
) -> list[str]:
    """What of a `ConcreteFunction` can lose an update.

    Args:
        function: A step, as it was sent to a worker.
        allowed: Regular expressions of the names of variables that may be set to a
            value computed from their own.
        under_key: Those that steps write one at a time, since each has a key to.
        of_new_rows: Those of which steps set rows that no other step knows yet.
    """
    names = {id(v.handle): v.name.removesuffix(":0") for v in function.graph.variables}
    captured: dict[str, Origins] = {}
    found = []
    for outside, inside in function.graph.captures:
        if outside.dtype != tf.resource or "SummaryWriter" in str(outside):
            continue
        name = names.get(id(outside), inside.op.name)
        captured[inside.op.name] = frozenset([name])
        if tf.DeviceSpec.from_string(outside.device).job not in PLACES:
            found.append(f"{name} lives on {outside.device}")
    walk = _Walk(function.graph.as_graph_def())
    walk.graph(captured)
    for variable in walk.set_from_own_read:
        if not _matches(variable, (*allowed, *under_key)):
            found.append(f"{variable} is set to a value computed from its own")
    found += [
        f"{op} writes {variable} unlocked"
        for op, variable in walk.unlocked
        if not _matches(variable, under_key)
        and not (op == "ResourceScatterUpdate" and _matches(variable, of_new_rows))
    ]
    return sorted(set(found))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


class _Walk:
    def __init__(self, graph: tf.compat.v1.GraphDef) -> None:
        self._graph = graph
        self._functions = {f.signature.name: f for f in graph.library.function}
        self.set_from_own_read: set[str] = set()
        self.unlocked: set[tuple[str, str]] = set()

    def graph(self, captured: dict[str, Origins]) -> None:
        self._body(self._graph.node, captured)

    def _call(self, name: str, args: Sequence[Origins]) -> list[Origins]:
        function = self._functions[name]
        inputs = [arg.name for arg in function.signature.input_arg]
        values = self._body(function.node_def, dict(zip(inputs, args, strict=True)))
        return [
            _value(function.ret[output.name], values)
            for output in function.signature.output_arg
        ]

    def _body(self, nodes: Any, known: dict[str, Origins]) -> dict[str, Any]:
        values: dict[str, Any] = dict(known)
        for node in _in_order(nodes, known):
            values[node.name] = self._outputs(
                node, [_value(i, values) for i in _data(node)]
            )
        return values

    def _outputs(self, node: Any, inputs: list[Origins]) -> Origins | list[Origins]:
        if node.op in LOOPS:
            return self._loop(node, inputs)
        called = list(_called(node))
        if called:
            args = inputs[1:] if node.op in BRANCHES else inputs
            results = [self._call(name, args) for name in called]
            return [NOTHING.union(*each) for each in zip(*results, strict=True)]
        self._note_write(node, inputs)
        return NOTHING if node.op in SHAPE_OPS else NOTHING.union(*inputs)

    def _loop(self, node: Any, values: list[Origins]) -> list[Origins]:
        while True:
            after = self._call(node.attr["body"].func.name, values)
            joined = [a | b for a, b in zip(values, after, strict=True)]
            if joined == values:
                return values
            values = joined

    def _note_write(self, node: Any, inputs: list[Origins]) -> None:
        if node.op == "AssignVariableOp" and inputs[0] & inputs[1]:
            self.set_from_own_read |= inputs[0]
        locked = node.op in LOCKED_IF_ASKED and node.attr["use_locking"].b
        if node.op in UNLOCKED_WRITES | LOCKED_IF_ASKED and not locked:
            self.unlocked |= {(node.op, variable) for variable in inputs[0]}


def _called(node: Any) -> Iterator[str]:
    """The functions that an operation calls."""
    if node.op in CALLS | BRANCHES:
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            for function in value.list.func:
                yield function.name


def _data(node: Any) -> list[str]:
    return [tensor for tensor in node.input if not tensor.startswith("^")]


def _in_order(nodes: Any, known: Iterable[str]) -> Iterator[Any]:
    """Each node after those that it takes its inputs from."""
    by_name = {node.name: node for node in nodes if node.name not in known}
    inputs = {
        name: {tensor.split(":")[0] for tensor in _data(node)}
        for name, node in by_name.items()
    }
    for name in graphlib.TopologicalSorter(inputs).static_order():
        if name in by_name:
            yield by_name[name]


def _value(tensor: str, values: dict[str, Any]) -> Origins:
    """The value of `node` or `node:1` in a graph, of `node:output:1` in a function."""
    name, *output = tensor.split(":")
    value = values[name]
    if isinstance(value, list):
        return value[int(output[-1]) if output else 0]
    return value
