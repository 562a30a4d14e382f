"""Several steps on a worker's own copies of the variables, between two exchanges.

A step reads and writes variables on the ps. Rewritten, it computes with values: where it
would read a variable, it uses the value so far, and where it would write one, it goes on
with the new value. Only before the first step are variables pulled, and only after the
last one are changes pushed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfdist.parameter_server.step_graph import messages
from tfdist.parameter_server.step_graph.definitions import Builder, reference
from tfdist.parameter_server.step_graph.fragment import Fragment
from tfdist.parameter_server.step_graph.lookups import Lookups, lookups_of, sources_of
from tfdist.parameter_server.step_graph.messages import Node
from tfdist.parameter_server.step_graph.repetition import State, repeated
from tfdist.parameter_server.step_graph.step_graph import (
    StepGraph,
    captures_of,
    structured,
)
from tfdist.parameter_server.step_graph.tasks import WORKER, task_at
from tfdist.parameter_server.step_graph.unrolling import copies
from tfdist.parameter_server.step_graph.used_inputs import used_inputs

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


class LocalSteps:
    """A step that computes with copies of its variables.

    Args:
        step: The step, which reads and writes the variables themselves.
        is_weight: Whether a captured resource handle is that of a weight.
        chosen: Takes the handles of all variables of which a worker can have a copy, by
            their placeholders, and returns the placeholders of those that are to have one.
        tables: Takes the handles of all variables and how the step uses those that it uses
            by their rows alone, and returns the placeholders of those of which the worker has
            a copy in a variable, whose handle takes the place of theirs.

    Attributes:
        variables: Those of which a worker has a copy.
        lookups: Those of which it has one by rows, by their placeholders.
        captured: The handles of all variables, by their placeholders in the step.
        added: The handles of the variables to which the changes are added.
        set: Those of the variables that are set to the last value.
        in_each_step: Those of the variables of which a worker has no copy.
    """

    def __init__(
        self,
        step: StepGraph,
        is_weight: Callable[[Any], bool],
        chosen: Callable[[Mapping[str, Any]], Collection[str]] = lambda all_: all_,
        tables: Callable[
            [Mapping[str, Any], Mapping[str, Lookups]], Collection[str]
        ] = lambda *_: (),
    ) -> None:
        self._function = step.function
        rewriting = _Rewriting(step, is_weight, chosen, tables)
        self.variables = rewriting.variables
        written = [each for each in self.variables if each.is_written]
        self.captured = handles = rewriting.handles
        self.added = [handles[each.placeholder] for each in written if each.adds]
        self.set = [handles[each.placeholder] for each in written if not each.adds]
        local = {each.placeholder for each in self.variables} | rewriting.lookups.keys()
        self.in_each_step = [handles[name] for name in handles if name not in local]
        states = [f"state/{i}:0" for i in range(len(self.variables))]
        inputs = [each.name for each in self._function.inputs]
        self.lookups = rewriting.lookups
        of_tables = [each for it in self.lookups.values() for each in it.ids]
        self._ids = list(dict.fromkeys(of_tables))
        definition = rewriting.definition()
        self._before = Fragment(rewriting.before(definition, self._ids), inputs)
        self._fragment = Fragment(definition, [*inputs, *states, *self._ids])

    def run(self, batch: Callable[[Any], Sequence[tf.Tensor]], steps: int) -> Any:
        """Adds steps with one exchange to the function being traced.

        Args:
            batch: Returns the tensors of the batch of this number.
            steps: How many steps it is. If it is more than one, the step must return a
                vector of float64.

        Returns:
            The result of the last step.
        """
        captured = captures_of(self._function)
        handles = self.handles(captured)

        def step(i: Any, values: State) -> tuple[Any, State]:
            return self.compute(batch(i), captured, values)

        pulled = [_pull(each, handles[each.placeholder]) for each in self.variables]
        # A loop that sends nothing is as fast with one copy of the step, and a worker
        # prepares it sooner.
        at_once = copies(self._fragment.size) if self.in_each_step else 1
        result, values = repeated(step, steps, at_once, pulled)
        for each, before, value in zip(self.variables, pulled, values, strict=True):
            _push(each, handles[each.placeholder], before, value)
        return result

    def handles(self, captured: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns what was captured, by the names of its placeholders in the step."""
        names = [each.op.name for each in self._function.inputs]
        return dict(zip(names[len(names) - len(captured) :], captured, strict=True))

    def ids(
        self, batch: Sequence[tf.Tensor], captured: Sequence[tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Adds what computes the rows that a step looks up, before it does.

        Args:
            batch: The tensors of its batch.
            captured: What `captures_of` has captured for the function being traced.

        Returns:
            The rows, by the names that `lookups` has for them.
        """
        tensors = self._before.add([*batch, *captured], self._ids, "rows_0")
        return dict(zip(self._ids, tensors, strict=True))

    def compute(
        self,
        batch: Sequence[tf.Tensor],
        captured: Sequence[tf.Tensor],
        values: State,
        ids: Mapping[str, tf.Tensor] = MappingProxyType({}),
    ) -> tuple[Any, State]:
        """Adds one step on the copies to the function being traced.

        Args:
            batch: The tensors of its batch.
            captured: What `captures_of` has captured for that function.
            values: Of `variables`, in their order.
            ids: What `ids` has returned.

        Returns:
            The result, and the values after the step.
        """
        results = [each.name for each in self._function.outputs]
        after = [each.value for each in self.variables]
        given = [*batch, *captured, *values, *(ids[name] for name in self._ids)]
        made = self._fragment.add(given, [*results, *after], "step_0")
        outputs, values = made[: len(results)], made[len(results) :]
        for each, value in zip(self.variables, values, strict=True):
            value.set_shape(each.shape)
        return structured(self._function, outputs), values


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
    if not variable.is_written:
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

    def __init__(
        self,
        step: StepGraph,
        is_weight: Callable[[Any], bool],
        chosen: Callable[[Mapping[str, Any]], Collection[str]],
        tables: Callable[[Mapping[str, Any], Mapping[str, Lookups]], Collection[str]],
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

    def definition(self) -> Any:
        """Returns the rewritten graph, without the placeholders of its inputs."""
        given = {each.op.name for each in self._graph.inputs}
        local = {each.placeholder for each in self.variables} | self.lookups.keys()
        for op in self._ops:
            definition = self._definitions[op.name]
            definition.attr.pop("_class", None)
            homes = [
                self._homes[each.op.name]
                for each in used_inputs(op)
                if each.op.name in self._homes and each.op.name not in local
            ]
            if task_at(op.device) != WORKER:
                # It was to run beside a variable, of which there is a copy here now.
                definition.device = homes[0] if homes else ""
        kept = [self._definitions[name] for name in self._needed if name not in given]
        del self._graph_def.node[:]
        self._graph_def.node.extend(kept)
        return self._graph_def

    def before(self, definition: Any, ids: Sequence[str]) -> Any:
        """Returns the part of the rewritten graph that some tensors depend on."""
        roots = [self._graph.get_tensor_by_name(each).op for each in ids]
        names = {op.name for op in sources_of(roots)}
        part = tf.compat.v1.GraphDef(
            library=definition.library, versions=definition.versions
        )
        part.node.extend(each for each in definition.node if each.name in names)
        return part

    def _uses(self) -> dict[str, list[tf.Operation]]:
        """Returns what uses each variable that a worker can copy, by its placeholder."""
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
        """Has the step use values in place of a variable."""
        value = state
        dtype, shape = _type_of(ops)
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


def _set_from_own(
    ops: Sequence[tf.Operation], uses: Mapping[str, Sequence[tf.Operation]]
) -> set[str]:
    """Returns the variables to which a value is added that was computed from theirs.

    Args:
        ops: The operations of the step, each after its inputs.
        uses: The operations that use each variable.
    """
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
