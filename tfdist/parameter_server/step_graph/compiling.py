"""Has XLA compile what a worker computes in a step: weights and a batch in, gradients out.

Messages and writes stay outside, and so does all that keeps a state: variables, tables and
streams of random numbers, which XLA would begin anew on each worker, all alike. A step has
as many calls as it has turns of its worker between two messages, most often one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import GraphDef, NodeDef
from tfdist.graph.draws import RANDOM
from tfdist.graph.tasks import WORKER, calls_functions, task_at
from tfdist.parameter_server.step_graph.definitions import rewire
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment
from tfdist.parameter_server.step_graph.messages import Node, in_order

_OUTSIDE = RANDOM | {
    "Const",
    "Where",
    *(f"Unique{v}" for v in ("", "V2", "WithCountsV2")),
}


def turns(nodes: Iterable[Node], compiled: Collection[str]) -> list[list[str]]:
    """Returns the nodes to compile, by calls: each waits for those before it, at most.

    Pure. A path that leaves a call's nodes never returns to them, so that no call waits
    for itself.
    """
    levels: dict[str, int] = {}
    found: dict[int, list[str]] = {}
    for node in in_order(nodes):
        ours = node.name in compiled
        sources = [*(name for name, _ in node.inputs), *node.after]
        after = [levels[each] + (ours != (each in compiled)) for each in sources]
        # Even if it waits for nothing: what follows the first message needs it then.
        levels[node.name] = max([int(ours), *after])
        if ours:
            found.setdefault(levels[node.name], []).append(node.name)
    return [found[level] for level in sorted(found)]


def with_compiled_calls(definition: GraphDef, graph: tf.Graph) -> GraphDef:
    """Replaces what a worker computes in a packed step by calls that XLA must compile.

    Args:
        definition: The `GraphDef` of the step, which is changed and returned.
        graph: The `FuncGraph` that it was made of.
    """
    nodes = {each.name: each for each in definition.node}
    for each in definition.node:
        # A gradient's constants wait for what it is a gradient of, and would make two calls.
        if each.op == "Const" and task_at(each.device) == WORKER:
            del each.input[:]
    operations = {op.name: op for op in graph.get_operations() if op.name in nodes}
    # A result is an `Identity`, which TensorFlow has wait for all updates.
    results = {each.op.name for each in graph.outputs}
    compiled = {
        name
        for name, op in operations.items()
        if name not in results
        and task_at(nodes[name].device) == WORKER
        and _is_computed(op)
    }
    for number, names in enumerate(turns(map(_node(nodes), nodes), compiled)):
        called = _Call(f"compiled_{number}", names, nodes, operations)
        if called.outputs:
            called.add_to(definition)
            nodes = {each.name: each for each in definition.node}
    return definition


def _is_computed(op: tf.Operation) -> bool:
    """Returns True if XLA is to compute an operation.

    Not a constant, nor what keeps a state, or has texts or an unknown number of rows.
    """
    if op.type in _OUTSIDE or not op.outputs:
        return False
    dtypes = {each.dtype for each in (*op.inputs, *op.outputs)}
    return calls_functions(op) or dtypes.isdisjoint({tf.resource, tf.string})


def _node(nodes: Mapping[str, NodeDef]) -> Any:
    def node(name: str) -> Node:
        sources = [_source(each) for each in nodes[name].input]
        # The others are inputs of the step.
        return Node(name, "", after=tuple(each for each in sources if each in nodes))

    return node


def _source(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


class _Call:
    """Some operations of a step that become one call of a function.

    Attributes:
        outputs: What others use of them.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        nodes: Mapping[str, NodeDef],
        operations: Mapping[str, tf.Operation],
    ) -> None:
        self._name = name
        self._names = set(names)
        self._others = [nodes[each] for each in nodes if each not in self._names]
        self._body: dict[str, Any] = {}
        self._given: dict[str, tf.TensorSpec] = {}
        self._after: dict[str, None] = {}
        for each in names:
            self._take(nodes[each], operations[each], nodes)
        used = dict.fromkeys(i for other in self._others for i in other.input)
        self.outputs = [
            each for each in used if each[0] != "^" and _source(each) in self._names
        ]

    def _take(
        self, node: NodeDef, op: tf.Operation, nodes: Mapping[str, NodeDef]
    ) -> None:
        """Takes an operation, and notes what it needs of others."""
        own = self._body[node.name] = tf.compat.v1.NodeDef()
        own.CopyFrom(node)
        own.device = ""
        types = node.attr["T"].list.type if node.op == "IdentityN" else ()
        for i, each in enumerate(node.input):
            source = _source(each)
            if source in self._names:
                continue
            if each[0] == "^":
                self._after[each] = None
                rewire(own, {each: ""})
            elif source in nodes and nodes[source].op == "Const":
                constant = self._body[source] = tf.compat.v1.NodeDef()
                constant.CopyFrom(nodes[source])
                constant.device = ""
            else:
                dtype = tf.as_dtype(types[i]) if types else op.inputs[i].dtype
                shape = op.inputs[i].shape if dtype == op.inputs[i].dtype else None
                self._given[each] = tf.TensorSpec(shape, dtype)

    def add_to(self, definition: GraphDef) -> None:
        """Replaces the operations in their graph."""
        body = tf.compat.v1.GraphDef(
            library=definition.library, versions=definition.versions
        )
        body.node.extend(self._body.values())
        fragment = GraphFragment(body, list(self._given))
        outputs = [each if ":" in each else f"{each}:0" for each in self.outputs]

        def run(*given: tf.Tensor) -> list[tf.Tensor]:
            # As errors expect the names of a step's operations.
            return fragment.add(given, outputs, "step_0")

        traced = tf.function(run, autograph=False, jit_compile=True)
        function = traced.get_concrete_function(*self._given.values())
        made = function.function_def
        # TensorFlow forgets a function of its own as soon as nothing in Python refers to it.
        made.signature.name += "_compiled"
        call = tf.compat.v1.NodeDef(name=self._name, op="StatefulPartitionedCall")
        call.input.extend([*self._given, *self._after])
        for key, tensors in (("Tin", function.inputs), ("Tout", function.outputs)):
            types = [each.dtype.as_datatype_enum for each in tensors]
            call.attr[key].list.type.extend(types)
        call.attr["f"].func.name = made.signature.name
        call.attr["_XlaMustCompile"].b = True
        replaced = {f"^{each}": f"^{self._name}" for each in self._names}
        for i, each in enumerate(self.outputs):
            replaced[each] = f"{self._name}:{i}" if i else self._name
        for other in self._others:
            rewire(other, replaced)
        kept = [*self._others, call]
        del definition.node[:]
        definition.node.extend(kept)
        definition.library.function.append(made)
        _tf.add_functions([made])
