"""Finds variables in which steps keep gradients for an update that only some steps make.

Between the steps, other workers set such a variable too: gradients that they have kept are
lost, or used twice. A step keeps a gradient if it sets a variable to it, to a sum with it, or
to what another such variable has. With g a gradient, own for what the step reads, and f the 0
or 1 that the step computes from a count:

| the one value assigned                          | the weight's update  | is found         |
| ----------------------------------------------- | -------------------- | ---------------- |
| `g`, `other + g`, `other`, `concat(own[1:], g)` | `own * f`, in a cond | yes              |
| `g`                                             | `own`, read after it | yes              |
| `g`, `where(c, g, own)`                         | `2 * g - own`        | no: in each step |
| `b * own + g`                                   | any                  | no: an average   |
| `norm(g)`                                       | any                  | no: a number     |
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import is_of_gradients
from tfdist._support.walks import reached
from tfdist.keras.captures import uses
from tfdist.keras.graph import constant
from tfdist.parameter_server.steps.mixed_writes import (
    BITS,
    CHOICES,
    JOINING,
    OF_POSITIONS,
    PRODUCTS,
    SUMS,
    WRITES,
    StepVariable,
    origin,
)

V = TypeVar("V")

_BRANCHES = ("If", "Case")
_QUOTIENTS = ("RealDiv", "DivNoNan")
_REDUCTIONS = ("Mean", "Sum")
_LINEAR = (
    *(*SUMS, *JOINING, "AddN", "BroadcastTo", "ClipByValue", "GatherV2", "Maximum"),
    *("Minimum", "Neg", "Pad", "PadV2", "Tile", "UnsortedSegmentSum"),
)
_FUSED = "ResourceApply"
_COMPARISONS = (
    *("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd"),
    *("LogicalNot", "LogicalOr", "NotEqual"),
)
# They add to the gradients of a round.
_TO_A_ROUND = ("ResourceAccumulatorApplyGradient", "QueueEnqueueManyV2")


def keeping_gradients(
    graph: tf.Graph, states: Sequence[tuple[V, tf.Tensor]], updated: Sequence[tf.Tensor]
) -> list[V]:
    """Returns the variables in which a step keeps gradients.

    Args:
        graph: The graph of the step.
        states: Variables that no optimizer updates, and the placeholder of each handle.
        updated: The placeholders of weights, and of the slots of their optimizers.
    """
    behind: dict[tf.Graph, dict[str, int]] = {}
    variables = [StepVariable(handle, behind) for _, handle in states]
    set_to = [list(filter(_is_floating, each.kept())) for each in variables]
    if not any(set_to):
        return []
    # Few steps come here. Who made an operation takes long to find.
    flows = _Flows(variables)
    held = [i for i, values in enumerate(set_to) if flows.have_gradients(values)]
    used = flows.used_at_times(graph, updated) if held else set()
    return [states[i][0] for i in held if i in used]


class _Flows:
    """The sums by which gradients get into variables of a step, and out of them."""

    def __init__(self, variables: Sequence[StepVariable]) -> None:
        self._variables = variables
        self._calls: dict[tf.Graph, tf.Operation] = {}
        self._state_of: dict[tf.Operation, int] = {}
        for i, each in enumerate(variables):
            self._calls |= each.calls
            self._state_of |= dict.fromkeys(each.reads, i)

    def have_gradients(self, values: Iterable[tf.Tensor]) -> bool:
        """Returns True if a value is a sum with gradients, or with what has them."""
        pending, seen = list(values), set()
        while pending:
            for op, _ in self._terms(pending.pop()):
                if op not in self._state_of:
                    return True
                if (state := self._state_of[op]) not in seen:
                    seen.add(state)
                    pending += self._written(state)
        return False

    def used_at_times(self, graph: tf.Graph, updated: Sequence[tf.Tensor]) -> set[int]:
        """Returns the states that updates use at a count, or in the step that set them."""
        used: set[int] = set()
        for op in self._updates(graph, updated):
            is_branch = self._is_at_times(op)
            for value in filter(_is_floating, op.inputs):
                for read, is_masked in self._terms(value, is_branch):
                    state = self._state_of.get(read)
                    if state is not None and (
                        is_masked or self._variables[state].set_before(read)
                    ):
                        used.add(state)
        pending = list(used)
        while pending:
            values = self._written(pending.pop())
            reads = [op for value in values for op, _ in self._terms(value)]
            new = {self._state_of[op] for op in reads if op in self._state_of} - used
            used |= new
            pending += new
        return used

    def _written(self, state: int) -> Iterator[tf.Tensor]:
        return (op.inputs[-1] for op in self._variables[state].writes)

    def _updates(
        self, graph: tf.Graph, updated: Iterable[tf.Tensor]
    ) -> list[tf.Operation]:
        found = [op for op in graph.get_operations() if op.type in _TO_A_ROUND]
        for handle in updated:
            used = uses(handle, self._calls)
            found += [op for op in used if op.type.startswith((*WRITES, _FUSED))]
        return found

    def _is_at_times(self, op: tf.Operation) -> bool:
        """Returns True if an operation is in a branch that is chosen by a count."""
        while op.graph in self._calls:
            op = self._calls[op.graph]
            if op.type.endswith(_BRANCHES) and self._is_counted(op.inputs[0]):
                return True
        return False

    def _terms(
        self, value: tf.Tensor, is_masked: bool = False
    ) -> Iterator[tuple[tf.Operation, bool]]:
        """Yields the reads and the gradients of which a value is a sum, but for factors.

        With each comes True if a count decides whether it is part of the sum.
        """
        pending, seen = [(value, is_masked)], set()
        while pending:
            tensor, is_masked = pending.pop()
            tensor = origin(tensor, self._calls)
            op = tensor.op
            if (key := (op, tensor.value_index, is_masked)) in seen:
                continue
            seen.add(key)
            if op in self._state_of or is_of_gradients(op):
                yield op, is_masked
                continue
            if op.type.endswith(_BRANCHES) or op.type in CHOICES:
                is_masked = is_masked or self._is_counted(op.inputs[0])
            elif op.type in PRODUCTS:
                is_masked = is_masked or any(map(self._is_mask, op.inputs))
            pending += [(each, is_masked) for each in self._summands(tensor)]

    def _summands(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        op = tensor.op
        if graphs := list(_tf.graphs_called(op)):
            self._calls |= dict.fromkeys(graphs, op)
            # The condition of a loop has one output.
            outputs = [each.outputs[tensor.value_index :][:1] for each in graphs]
            return [each for found in outputs for each in found]
        if op.type in _REDUCTIONS and tensor.shape.rank == 0:
            return []
        if op.type in _QUOTIENTS:
            return [op.inputs[0]]
        is_linear = op.type in (*_LINEAR, *_REDUCTIONS, *CHOICES, *PRODUCTS)
        return list(filter(_is_floating, op.inputs)) if is_linear else []

    def _is_mask(self, factor: tf.Tensor) -> bool:
        """Returns True if a factor is 0 at times, by a count."""
        tensor = origin(factor, self._calls)
        op = tensor.op
        if op.type in _QUOTIENTS:
            return self._is_mask(op.inputs[0])
        if op.type in PRODUCTS:
            return any(map(self._is_mask, op.inputs))
        if op.type == "Sub" and constant(op.inputs[0]) is not None:
            return self._is_mask(op.inputs[1])
        if op.type in CHOICES and {str(constant(i)) for i in op.inputs[1:]} <= BITS:
            return self._is_counted(op.inputs[0])
        return tensor.dtype == tf.bool and self._is_counted(tensor)

    def _is_counted(self, chosen_by: tf.Tensor) -> bool:
        """Returns True if a number that the step reads decides."""
        decides = (*_COMPARISONS, *OF_POSITIONS)

        def operands(op: tf.Operation) -> Iterable[tf.Operation]:
            inputs = op.inputs if op.type in decides else ()
            return [origin(each, self._calls).op for each in inputs]

        ops = reached([origin(chosen_by, self._calls).op], operands)
        numbers = [op for op in ops if op in self._state_of]
        return any(op.outputs[0].shape.rank == 0 for op in numbers)


def _is_floating(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating)
