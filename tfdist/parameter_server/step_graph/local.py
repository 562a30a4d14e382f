"""Several steps on a worker's own copies of the variables, between two exchanges.

A step reads and writes variables on the ps. Rewritten, it computes with values: where it
would read a variable, it uses the value so far, and where it would write one, it continues
with the new value. Only before the first step are variables pulled, and only after the
last one are changes pushed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment
from tfdist.parameter_server.step_graph.lookups import Lookups
from tfdist.parameter_server.step_graph.repetition import State, repeated
from tfdist.parameter_server.step_graph.rewriting import LocalVariable, Rewriting
from tfdist.parameter_server.step_graph.step_graph import (
    StepGraph,
    captures_of,
    structured,
)
from tfdist.parameter_server.step_graph.unrolling import copies


class StepOnCopies:
    """A step that computes with copies of its variables.

    Args:
        step: The step, which reads and writes the variables themselves.
        is_weight: Whether a captured resource handle is that of a weight.
        chosen: Takes the handles of all variables that a worker can copy, by their
            placeholders, and returns the placeholders of the variables to copy.
        tables: Takes the handles of all variables and how the step uses those that it uses
            by their rows alone, and returns the placeholders of those of which the worker has
            a copy in a variable, whose handle takes the place of theirs.

    Attributes:
        variables: The variables that a worker has a copy of.
        lookups: The variables of which it has rows, by their placeholders.
        captured: The handles of all variables, by their placeholders in the step.
        added: The handles of the variables to which the changes are added.
        set: The variables that are set to the last value.
        in_each_step: The variables that a worker has no copy of.
    """

    def __init__(
        self,
        step: StepGraph,
        is_weight: Callable[[tf.Tensor], bool],
        chosen: Callable[[Mapping[str, tf.Tensor]], Collection[str]] = lambda all_: (
            all_
        ),
        tables: Callable[
            [Mapping[str, tf.Tensor], Mapping[str, Lookups]], Collection[str]
        ] = lambda *_: (),
    ) -> None:
        self._function = step.function
        rewriting = Rewriting(step, is_weight, chosen, tables)
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
        self._before = GraphFragment(rewriting.before(definition, self._ids), inputs)
        self._fragment = GraphFragment(definition, [*inputs, *states, *self._ids])

    def run(self, batch: Callable[[Any], Sequence[tf.Tensor]], steps: int) -> Nest:
        """Adds steps with one exchange, and returns the result of the last one.

        If they are more than one, it must be a vector of float64.
        """
        captured = captures_of(self._function)
        handles = self.handles(captured)

        def step(i: int | tf.Tensor, values: State) -> tuple[Nest, State]:
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
        """Returns the captures, by the names of their placeholders in the step."""
        names = [each.op.name for each in self._function.inputs]
        return dict(zip(names[len(names) - len(captured) :], captured, strict=True))

    def ids(
        self, batch: Sequence[tf.Tensor], captured: Sequence[tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Adds the computation of the rows that a step looks up, by name."""
        tensors = self._before.add([*batch, *captured], self._ids, "rows_0")
        return dict(zip(self._ids, tensors, strict=True))

    def compute(
        self,
        batch: Sequence[tf.Tensor],
        captured: Sequence[tf.Tensor],
        values: State,
        ids: Mapping[str, tf.Tensor] = MappingProxyType({}),
    ) -> tuple[Nest, State]:
        """Adds one step on the copies; returns its result, and the values after it.

        Args:
            batch: The tensors of its batch.
            captured: The captures of `captures_of` for the function being traced.
            values: The values of `variables`, in their order.
            ids: The result of `ids`.
        """
        results = [each.name for each in self._function.outputs]
        after = [each.value for each in self.variables]
        # In the order of the names that `_fragment` was made with.
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
    # A variable that is only added to begins with zeros, so its value is the change.
    change = value - before if variable.is_read else value
    with tf.device(variable.device):
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=change)
