"""Finds variables that a step both adds to and sets.

Between the two, other workers add too: what they have added is lost, or used twice. The
usual case is gradients that are accumulated by hand, in two writes or in one. With `own`
for what the step reads, c a condition (a branch is as `where` is), and f 0 or 1 by it:

| the one value assigned                                 | is found           |
| ------------------------------------------------------ | ------------------ |
| `where(c, 0, own + d)`, `(own + d) * f`, `own * f + d` | yes                |
| `where(c, own + d, own)`                               | no: never reset    |
| `where(c, d, own)`, `own * f + d * (1 - f)`            | no: never added to |
| `b * own + d`, `where(c, d, b * own + d)`              | no: an average     |
| `where(c, 0, own + 1)`                                 | no: a counter      |

Workers that read the same count set the same position, as in a ring buffer. An id, or the
index of the nearest row, is no count.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.keras.captures import uses
from tfdist.keras.graph import constant

READS = ("ReadVariableOp", "ResourceGather")
WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")
SUMS = ("Add", "AddV2", "Sub")
PRODUCTS = ("Mul", "MulNoNan")
CHOICES = ("Select", "SelectV2")
BITS = {"0", "0.0", "1", "1.0"}
_PASSING = (
    *("Cast", "CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "Reshape"),
    *("ReverseV2", "Roll", "Slice", "SplitV", "Squeeze", "StopGradient"),
    *("StridedSlice", "Transpose"),
)
# By the first and the second, a variable in shards is read as a whole.
JOINING = ("ConcatV2", "DynamicStitch", "Pack", "TensorScatterUpdate")

# Operations that write at a position, and the index of their input that has it.
_AT_A_POSITION = {
    "ResourceScatterNdUpdate": 1,
    "ResourceScatterUpdate": 1,
    "ResourceStridedSliceAssign": 1,
    "TensorScatterUpdate": 1,
}
# Operations that compute a position from a count.
OF_POSITIONS = (
    *(*SUMS, *JOINING, "BroadcastTo", "Fill", "FloorDiv", "FloorMod", "GatherV2"),
    *("Maximum", "Minimum", "Mod", "Mul", "Range", "Tile"),
)

# Forms of a value: without the own value, the own value itself, a sum with it, and others.
_FREE, _KEPT, _ADDED, _OTHER = (frozenset([form]) for form in range(4))


def is_added_to_and_set(
    handle: tf.Tensor, behind: dict[tf.Graph, dict[str, int]]
) -> bool:
    """Returns True if a graph adds to a variable, and also sets, resets or clears it.

    Args:
        handle: The placeholder of the variable's handle in the graph.
        behind: An empty dictionary, for all variables of the graph the same.
    """
    variable = StepVariable(handle, behind)
    added: list[frozenset[int]] = []
    sets: list[frozenset[int]] = []
    for op in variable.writes:
        (added if _is_sum(op) else sets).append(variable.forms(op.inputs[-1]))
    # To subtract from a variable what it was is to clear it.
    is_set = bool(sets) or any(forms != _FREE for forms in added)
    return (_FREE in added and is_set) or frozenset().union(*sets) >= _ADDED | _FREE


def is_set_at_a_count(
    handle: tf.Tensor,
    behind: dict[tf.Graph, dict[str, int]],
    counted: dict[tf.Graph, bool],
) -> bool:
    """Returns True if a graph sets a part of a variable at a position that it counts.

    `counted` is an empty dictionary, for all variables of the graph the same.
    """
    variable = StepVariable(handle, behind)
    return any(variable.is_counted(each, counted) for each in variable.positions())


def _is_sum(write: tf.Operation) -> bool:
    return "Add" in write.type or "Sub" in write.type


class StepVariable:
    """A variable of a step, and its own value in the value that the step writes.

    `behind` has `_variables_behind` of each graph, for all variables.

    Attributes:
        calls: The operation that calls each function, by the function's graph.
        writes: The operations that write it.
        reads: Those that read it.
    """

    def __init__(
        self, handle: tf.Tensor, behind: dict[tf.Graph, dict[str, int]]
    ) -> None:
        self.calls: dict[tf.Graph, tf.Operation] = {}
        found = list(uses(handle, self.calls))
        self.writes = [op for op in found if op.type.startswith(WRITES)]
        self.reads = {op for op in found if op.type in READS}
        self._name_in = {op.graph: op.inputs[0].name for op in self.reads}
        self._behind = behind
        self._known: dict[Any, frozenset[int]] = {}

    def forms(self, tensor: tf.Tensor) -> frozenset[int]:
        """Returns the forms that the own value has in a tensor."""
        tensor = self._origin(tensor)
        key = tensor.op, tensor.value_index
        if key not in self._known:
            self._known[key] = self._forms_of(tensor)
        return self._known[key]

    def _forms_of(self, tensor: tf.Tensor) -> frozenset[int]:
        op = tensor.op
        if op in self.reads:
            return _KEPT
        # What a loop returns is no output of its body, as it is of a branch.
        if "While" not in op.type and (graphs := list(_tf.graphs_called(op))):
            self.calls |= dict.fromkeys(graphs, op)
            return self._any(each.outputs[tensor.value_index] for each in graphs)
        if not self._depends(op):
            return _FREE
        if op.type in CHOICES:
            return self._any(op.inputs[1:])
        if op.type in JOINING:
            return self._any(op.inputs) - _FREE
        if (masked := self._masked(tensor)) is not None:
            return self.forms(masked[0]) | _FREE
        return self._of_sum(op) if op.type in SUMS else _OTHER

    def positions(self) -> Iterator[tf.Tensor]:
        """Yields the positions of the parts of the variable that the step sets."""
        for op in self.writes:
            if op.type == "AssignVariableOp":
                op = self._origin(op.inputs[-1]).op
                if not self._depends(op):
                    continue
            if op.type in _AT_A_POSITION:
                yield op.inputs[_AT_A_POSITION[op.type]]

    def is_counted(self, position: tf.Tensor, counted: dict[tf.Graph, bool]) -> bool:
        """Returns True if a position is computed from a variable that the step counts."""
        pending, walked = [position], set()
        while pending:
            op = self._origin(pending.pop()).op
            if op.type in READS:
                op = self._origin(op.inputs[0]).op
                if op not in counted:
                    counted[op] = StepVariable(op.outputs[0], self._behind).counts()
                if counted[op]:
                    return True
            elif op.type in OF_POSITIONS and op not in counted and op not in walked:
                walked.add(op)
                pending += op.inputs
        counted |= dict.fromkeys(walked, False)
        return False

    def counts(self) -> bool:
        """Returns True if the step adds to the variable, or sets a number from itself."""
        is_number = all(op.outputs[0].shape.rank == 0 for op in self.reads)
        for op in self.writes:
            is_sum, is_own = _is_sum(op), self._depends(op.inputs[-1].op)
            if is_sum != is_own and (is_sum or is_number):
                return True
        return False

    def kept(self) -> list[tf.Tensor]:
        """Returns the values to which the step sets the variable, but for averages."""
        values = [op.inputs[-1] for op in self.writes if not _is_sum(op)]
        return [each for each in values if self.forms(each).isdisjoint(_OTHER)]

    def set_before(self, read: tf.Operation) -> bool:
        """Returns True if a step reads a value that it has set, whatever it was before."""
        sets = [op for op in self.writes if not _is_sum(op)]
        free = {op for op in sets if self.forms(op.inputs[-1]) == _FREE} | {read}
        return next(op for op in read.graph.get_operations() if op in free) is not read

    def _any(self, tensors: Iterable[tf.Tensor]) -> frozenset[int]:
        return frozenset().union(*map(self.forms, tensors))

    def _of_sum(self, op: tf.Operation) -> frozenset[int]:
        own: list[tf.Tensor] = []
        terms: list[tf.Tensor] = []
        # Without recursion: a sum may have a term for each weight.
        pending = list(op.inputs)
        while pending and len(own) < 2:
            each = self._origin(pending.pop())
            if each.op.type in SUMS and self._depends(each.op):
                pending += each.op.inputs
            else:
                (terms if self.forms(each) == _FREE else own).append(each)
        if len(own) != 1:
            return _OTHER if own else _FREE
        forms, mask = self.forms(own[0]), self._masked(own[0])
        masks = [self._masked(each) for each in terms]
        # `own * f + d * (1 - f)` is a choice, and a counter is no gradient.
        is_choice = mask and all(each and _is_same(each[1], mask[1]) for each in masks)
        if is_choice or all(constant(each) is not None for each in terms):
            return forms
        return forms - _KEPT | _ADDED if forms >= _KEPT else forms

    def _masked(self, product: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Returns the tensor that a product clears, and the condition for it."""
        op = self._origin(product).op
        if op.type in PRODUCTS:
            for factor, value in zip(op.inputs, reversed(op.inputs), strict=True):
                if (condition := self._condition(factor)) is not None:
                    return value, condition
        return None

    def _condition(self, factor: tf.Tensor) -> tf.Tensor | None:
        """Returns the condition that makes a factor 0 or 1, or None."""
        origin = self._origin(factor)
        op = origin.op
        if op.type == "Sub" and constant(op.inputs[0]) is not None:
            return self._condition(op.inputs[1])
        if op.type in CHOICES and {str(constant(i)) for i in op.inputs[1:]} <= BITS:
            origin = self._origin(op.inputs[0])
        if origin.op.type == "LogicalNot":
            origin = self._origin(origin.op.inputs[0])
        return origin if origin.dtype == tf.bool else None

    def _origin(self, tensor: tf.Tensor) -> tf.Tensor:
        return origin(tensor, self.calls)

    def _depends(self, op: tf.Operation) -> bool:
        """Returns True if the own value is behind an operation's result."""
        if op.graph not in self._behind:
            self._behind[op.graph] = _variables_behind(op.graph)
        known = self._behind[op.graph]
        return bool(known[op.name] & known.get(self._name_in.get(op.graph, ""), 0))


def origin(tensor: tf.Tensor, calls: Mapping[tf.Graph, tf.Operation]) -> tf.Tensor:
    """Returns the origin of a tensor that is passed on, into functions too.

    `calls` has the operation that calls each function, by the function's graph.
    """
    while True:
        op = tensor.op
        if op.type in _PASSING:
            tensor = op.inputs[0]
        elif op.type == "IdentityN":
            tensor = op.inputs[tensor.value_index]
        elif op.type == "Placeholder" and op.graph in calls:
            inside = [each is tensor for each in op.graph.inputs]
            tensor = _tf.arguments_of(calls[op.graph])[inside.index(True)]
        else:
            return tensor


def _variables_behind(graph: tf.Graph) -> dict[str, int]:
    """Returns the variables that each operation is computed from, and each one's bit.

    One pass, however many variables there are. The key of a bit is the name of a handle,
    which has a colon as that of no operation does.
    """
    behind: dict[str, int] = {}
    bits: dict[str, int] = {}
    for op in graph.get_operations():
        found = 0
        if op.type in READS:
            found = bits.setdefault(op.inputs[0].name, 1 << len(bits))
        for each in op.inputs:
            found |= behind.get(each.op.name, 0)
        behind[op.name] = found
    return behind | bits


def _is_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Returns True if two tensors are one, or computed alike from the same ones."""
    pending, seen = [(one, other)], set()
    while pending:
        pair = pending.pop()
        a, b = pair[0].op, pair[1].op
        if pair[0] is pair[1] or (a, b) in seen:
            continue
        seen.add((a, b))
        if (
            (a.type, pair[0].value_index) != (b.type, pair[1].value_index)
            or a.op_def.is_stateful
            or a.type == "Placeholder"
            or a.node_def.attr != b.node_def.attr
        ):
            return False
        pending += zip(a.inputs, b.inputs, strict=True)
    return True
