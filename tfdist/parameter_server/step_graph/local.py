"""Several steps on a worker's own copies of the variables, between two exchanges.

A step reads and writes variables on the ps. Rewritten, it computes with values: where it
would read a variable, it uses the value so far, and where it would write one, it goes on
with the new value. Only before the first step are variables pulled, and only after the
last one are changes pushed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.parameter_server.step_graph import copies, messages
from tfdist.parameter_server.step_graph.definitions import Builder, reference
from tfdist.parameter_server.step_graph.fragment import Fragment
from tfdist.parameter_server.step_graph.messages import Node
from tfdist.parameter_server.step_graph.step_graph import (
    StepGraph,
    captures_of,
    structured,
)
from tfdist.parameter_server.step_graph.tasks import WORKER, task_at

# What a step does with a variable of which a worker can have a copy. The others look up
# or update some rows, or pass the variable on to a function.
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
        device: Where it lives.
        dtype: Its dtype.
        shape: Its shape.
        is_read: Whether to pull its value. A counter or a metric is only added to.
        adds: Whether to push the change of its value. Otherwise the value is pushed, and
            replaces what other workers have pushed meanwhile.
        value: The name of the tensor that has its value after the step.
    """

    placeholder: str
    device: str
    dtype: tf.DType
    shape: tf.TensorShape
    is_read: bool
    adds: bool
    value: str


class LocalSteps:
    """A step that computes with copies of its variables.

    Args:
        step: The step, which reads and writes the variables themselves.
        is_weight: Whether a captured resource handle is that of a weight.
    """

    def __init__(self, step: StepGraph, is_weight: Callable[[Any], bool]) -> None:
        self._function = step.function
        rewriting = _Rewriting(step, is_weight)
        self._variables = rewriting.variables
        states = [f"state/{i}:0" for i in range(len(self._variables))]
        inputs = [each.name for each in self._function.inputs]
        self._fragment = Fragment(rewriting.definition(), [*inputs, *states])

    def run(self, batches: Sequence[Sequence[tf.Tensor]]) -> Any:
        """Adds a step per batch, with one exchange, to the function being traced.

        Returns:
            The result of the last step.
        """
        captured = captures_of(self._function)
        names = [each.op.name for each in self._function.inputs]
        names = names[len(names) - len(captured) :]
        handles = dict(zip(names, captured, strict=True))
        pulled = [_pull(each, handles[each.placeholder]) for each in self._variables]
        values = pulled
        results = [each.name for each in self._function.outputs]
        after = [each.value for each in self._variables]
        for i, batch in enumerate(batches):
            given = [*batch, *captured, *values]
            made = self._fragment.add(given, [*results, *after], f"step_{i}")
            outputs, values = made[: len(results)], made[len(results) :]
        for each, before, value in zip(self._variables, pulled, values, strict=True):
            _push(each, handles[each.placeholder], before, value)
        return structured(self._function, outputs)


def _pull(variable: LocalVariable, handle: tf.Tensor) -> tf.Tensor:
    if not variable.is_read:
        return tf.zeros(variable.shape, variable.dtype)
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
    value.set_shape(variable.shape)
    return value


def _push(
    variable: LocalVariable, handle: tf.Tensor, before: tf.Tensor, value: tf.Tensor
) -> None:
    if value is before:
        return
    if not variable.adds:
        with tf.device(variable.device):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return
    change = value - before if variable.is_read else value
    with tf.device(variable.device):
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=change)


class _Rewriting:
    """The graph of a step while it is rewritten."""

    def __init__(self, step: StepGraph, is_weight: Callable[[Any], bool]) -> None:
        self._graph = graph = step.function.graph
        self._homes = step.homes
        self._graph_def = graph.as_graph_def()
        copies.without_seeds(self._graph_def.node)
        self._definitions = {each.name: each for each in self._graph_def.node}
        roots = [each.op.name for each in graph.outputs]
        roots += [op.name for op in graph.control_outputs]
        nodes = [_node(op) for op in graph.get_operations()]
        self._needed = [each.name for each in messages.needed(nodes, roots)]
        self._ops = [graph.get_operation_by_name(name) for name in self._needed]
        handles = {inside.op.name: outside for outside, inside in graph.captures}
        self._values: dict[str, str] = {}
        self.variables: list[LocalVariable] = []
        for name in self._local():
            index = len(self.variables)
            self.variables.append(
                self._rewrite(name, f"state/{index}:0", is_weight(handles[name]))
            )

    def definition(self) -> Any:
        """Returns the rewritten graph, without the placeholders of its inputs."""
        given = {each.op.name for each in self._graph.inputs}
        local = {each.placeholder for each in self.variables}
        for op in self._ops:
            definition = self._definitions[op.name]
            definition.attr.pop("_class", None)
            homes = [
                self._homes[each.op.name]
                for each in op.inputs
                if each.op.name in self._homes and each.op.name not in local
            ]
            if task_at(op.device) != WORKER:
                # It was to run beside a variable, of which there is a copy here now.
                definition.device = homes[0] if homes else ""
        kept = [self._definitions[name] for name in self._needed if name not in given]
        del self._graph_def.node[:]
        self._graph_def.node.extend(kept)
        return self._graph_def

    def _local(self) -> list[str]:
        """Returns the placeholders of the variables that a worker can copy."""
        uses: dict[str, set[str]] = {}
        for op in self._ops:
            for each in op.inputs:
                if each.op.name in self._homes:
                    uses.setdefault(each.op.name, set()).add(op.type)
        return [
            name
            for name, types in uses.items()
            if types <= _COPIED and task_at(self._homes[name]) != WORKER
        ]

    def _rewrite(self, placeholder: str, state: str, is_weight: bool) -> LocalVariable:
        """Has the step use values in place of a variable."""
        ops = [
            op for op in self._ops if any(i.op.name == placeholder for i in op.inputs)
        ]
        value = state
        dtype, shape = _type_of(ops)
        for op in ops:
            self._definitions[op.name].CopyFrom(_with_values(op, value, dtype))
            if op.type != _READ:
                value = f"{op.name}:0"
        writes = [op for op in ops if op.type != _READ]
        reads = [op for op in ops if op.type == _READ]
        adds = all(op.type != _SET for op in writes)
        return LocalVariable(
            placeholder,
            self._homes[placeholder],
            dtype,
            shape,
            # To begin from zeros, their shape must be known.
            is_read=bool(reads) or not adds or not shape.is_fully_defined(),
            adds=adds and (is_weight or not _depends(writes, reads)),
            value=value,
        )


def _node(op: tf.Operation) -> Node:
    inputs = tuple((each.op.name, each.value_index) for each in op.inputs)
    return Node(op.name, WORKER, inputs, tuple(each.name for each in op.control_inputs))


def _type_of(ops: Sequence[tf.Operation]) -> tuple[tf.DType, tf.TensorShape]:
    """Returns the dtype and the shape of the variable that these operations use."""
    tensors = [op.outputs[0] if op.type == _READ else op.inputs[1] for op in ops]
    shapes = [each.shape for each in tensors if each.shape.is_fully_defined()]
    return tensors[0].dtype, shapes[0] if shapes else tensors[0].shape


def _with_values(op: tf.Operation, value: str, dtype: tf.DType) -> Any:
    """Returns what computes with a value in place of an operation on a variable."""
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


def _depends(writes: Sequence[tf.Operation], reads: Sequence[tf.Operation]) -> bool:
    """Whether what is added to a variable was computed from its value."""
    sources = {op.name for op in reads}
    pending = [op.inputs[1].op for op in writes]
    seen: set[str] = set()
    while pending:
        op = pending.pop()
        if op.name in sources:
            return True
        if op.name not in seen:
            seen.add(op.name)
            pending.extend(each.op for each in op.inputs)
    return False
