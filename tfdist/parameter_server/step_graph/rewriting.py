"""Rewrites the graph of a step so that it computes with values in place of variables."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._support.types import GraphDef
from tfdist.graph.tasks import WORKER, task_at
from tfdist.graph.used_inputs import sources_of, used_inputs
from tfdist.parameter_server.step_graph import messages
from tfdist.parameter_server.step_graph.definitions import Builder, reference
from tfdist.parameter_server.step_graph.lookups import Lookups, lookups_of
from tfdist.parameter_server.step_graph.messages import Node
from tfdist.parameter_server.step_graph.step_graph import StepGraph

# Operations of a step on a variable of which a worker can have a copy. All others look
# up or update some rows, or pass the variable on to a function.
_READ = "ReadVariableOp"
_ADD, _SUBTRACT, _SET = (
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "AssignVariableOp",
)
_COPIED = frozenset({_READ, _ADD, _SUBTRACT, _SET})


@dataclass(frozen=True)
class LocalVariable:
    """A variable that a worker has a copy of.

    Attributes:
        placeholder: The name of the placeholder of its handle in the step.
        device: The device of the variable.
        dtype: Its dtype.
        shape: Its shape.
        is_read: Whether to pull its value. A counter or a metric is only added to.
        adds: Whether to push the change of its value. Otherwise the value is pushed, and
            replaces what other workers have pushed meanwhile.
        is_written: Whether there is anything to push.
        value: The name of the tensor that has its value after the step.
    """

    placeholder: str
    device: str
    dtype: tf.DType
    shape: tf.TensorShape
    is_read: bool
    adds: bool
    is_written: bool
    value: str


class Rewriting:
    """The graph of a step while it is rewritten; `StepOnCopies` says by what.

    Attributes:
        handles: The handles of the variables, by their placeholders in the step.
        variables: The variables that are replaced by values.
        lookups: The variables whose handles are to be replaced.
    """

    def __init__(
        self,
        step: StepGraph,
        is_weight: Callable[[tf.Tensor], bool],
        chosen: Callable[[Mapping[str, tf.Tensor]], Collection[str]],
        tables: Callable[
            [Mapping[str, tf.Tensor], Mapping[str, Lookups]], Collection[str]
        ],
    ) -> None:
        self._graph = graph = step.function.graph
        self._homes = step.homes
        self._graph_def = step.definition()
        self._definitions = {each.name: each for each in self._graph_def.node}
        roots = [each.op.name for each in graph.outputs]
        roots += [op.name for op in graph.control_outputs]
        nodes = [_node(op) for op in graph.get_operations()]
        self._needed = [each.name for each in messages.needed(nodes, roots)]
        self._ops = [graph.get_operation_by_name(name) for name in self._needed]
        self.handles = {
            inside.op.name: outside
            for outside, inside in graph.captures
            if inside.op.name in self._homes
        }
        uses = self._uses()
        kept = chosen({name: self.handles[name] for name in uses})
        uses = {name: ops for name, ops in uses.items() if name in kept}
        found = lookups_of(self._ops, self._homes)
        kept = tables(self.handles, found)
        self.lookups = {name: found[name] for name in found if name in kept}
        from_own = _set_from_own(self._ops, uses)
        self.variables: list[LocalVariable] = []
        for name, ops in uses.items():
            adds = is_weight(self.handles[name]) or name not in from_own
            state = f"state/{len(self.variables)}:0"
            self.variables.append(self._rewrite(name, ops, state, adds))

    def definition(self) -> GraphDef:
        """Returns the rewritten graph, without the placeholders of its inputs."""
        given = {each.op.name for each in self._graph.inputs}
        local = {each.placeholder for each in self.variables} | self.lookups.keys()
        for op in self._ops:
            definition = self._definitions[op.name]
            # It names what to run next to, which is not in the copy.
            definition.attr.pop("_class", None)
            used = [each.op.name for each in used_inputs(op)]
            homes = [
                self._homes[name]
                for name in used
                if name in self._homes and name not in local
            ]
            # It was to run next to a variable, of which there is a copy here now. A copy in a
            # variable is found by its name, on one device. What uses it must not name a
            # device, or other functions look for it elsewhere, and find none.
            if task_at(op.device) != WORKER or not self.lookups.keys().isdisjoint(used):
                definition.device = homes[0] if homes else ""
        kept = [self._definitions[name] for name in self._needed if name not in given]
        del self._graph_def.node[:]
        self._graph_def.node.extend(kept)
        return self._graph_def

    def before(self, definition: GraphDef, ids: Sequence[str]) -> GraphDef:
        """Returns the part of the rewritten graph that some tensors depend on."""
        roots = [self._graph.get_tensor_by_name(each).op for each in ids]
        names = {op.name for op in sources_of(roots)}
        part = tf.compat.v1.GraphDef(
            library=definition.library, versions=definition.versions
        )
        part.node.extend(each for each in definition.node if each.name in names)
        return part

    def _uses(self) -> dict[str, list[tf.Operation]]:
        """Returns the uses of variables that a worker can copy, by placeholder."""
        uses: dict[str, list[tf.Operation]] = {}
        for op in self._ops:
            for name in dict.fromkeys(each.op.name for each in used_inputs(op)):
                if name in self._homes:
                    uses.setdefault(name, []).append(op)
        return {
            name: ops
            for name, ops in uses.items()
            if all(op.type in _COPIED for op in ops)
            and task_at(self._homes[name]) != WORKER
        }

    def _rewrite(
        self, placeholder: str, ops: Sequence[tf.Operation], state: str, adds: bool
    ) -> LocalVariable:
        """Replaces a variable of the step by values."""
        value = state
        dtype, shape = _type_of(ops)
        # In the order of the trace, in which TensorFlow runs what uses one variable.
        for op in ops:
            self._definitions[op.name].CopyFrom(_with_values(op, value, dtype))
            if op.type != _READ:
                value = f"{op.name}:0"
        writes = [op for op in ops if op.type != _READ]
        adds = adds and all(op.type != _SET for op in writes)
        return LocalVariable(
            placeholder,
            self._homes[placeholder],
            dtype,
            shape,
            # To begin from zeros, their shape must be known.
            is_read=len(writes) < len(ops) or not adds or not shape.is_fully_defined(),
            adds=adds,
            is_written=bool(writes),
            value=value,
        )


def _node(op: tf.Operation) -> Node:
    inputs = tuple((each.op.name, each.value_index) for each in op.inputs)
    return Node(op.name, WORKER, inputs, tuple(each.name for each in op.control_inputs))


def _type_of(ops: Sequence[tf.Operation]) -> tuple[tf.DType, tf.TensorShape]:
    """Returns the dtype and the shape of the variable that these operations use."""
    tensors = [op.outputs[0] if op.type == _READ else op.inputs[1] for op in ops]
    # A read may know less of the shape than a write.
    shapes = [each.shape for each in tensors if each.shape.is_fully_defined()]
    return tensors[0].dtype, shapes[0] if shapes else tensors[0].shape


def _with_values(op: tf.Operation, value: str, dtype: tf.DType) -> Any:
    """Returns the nodes that compute with a value instead of a variable."""
    before = reference((value.partition(":")[0], 0))
    builder = Builder("", "")
    given = op.inputs[1] if len(op.inputs) > 1 else None
    written = reference((given.op.name, given.value_index)) if given is not None else ""
    if op.type == _READ:
        builder.add("Identity", [before], op.name, T=dtype)
    elif op.type == _SET:
        builder.add("Identity", [written], op.name, T=dtype)
    else:
        kind = "AddV2" if op.type == _ADD else "Sub"
        builder.add(kind, [before, written], op.name, T=dtype)
    return builder.made[0]


def _set_from_own(
    ops: Sequence[tf.Operation], uses: Mapping[str, Sequence[tf.Operation]]
) -> set[str]:
    """Returns variables whose increment depends on their own value."""
    # A bit per variable: one pass, however many there are.
    bits = {name: 1 << i for i, name in enumerate(uses)}
    read = {
        op.name: bits[name]
        for name, of_variable in uses.items()
        for op in of_variable
        if op.type == _READ
    }
    sources: dict[str, int] = {}
    for op in ops:
        of_op = read.get(op.name, 0)
        for each in op.inputs:
            of_op |= sources.get(each.op.name, 0)
        sources[op.name] = of_op
    return {
        name
        for name, of_variable in uses.items()
        for op in of_variable
        if op.type != _READ and sources[op.inputs[1].op.name] & bits[name]
    }
