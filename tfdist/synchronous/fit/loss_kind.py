"""Reads from a traced graph how a replica's number relates to the whole batch's.

A loss, a metric's increment or a log is a function of the examples. One process computes
it from all of them, a replica from its own. Which correction makes both equal follows from
the operations: a mean over examples is weighted by the replica's share, a sum is added up.
The numbers themselves do not tell one from the other, and a `train_step` may compute its
loss with any function, so `KindReader` reads the graph. It executes nothing.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._authors import is_apart, is_of_gradient, is_of_ragged
from tfdist.keras.graph import handle_of, inputs_of, is_symbolic
from tfdist.synchronous.fit.application import Application
from tfdist.synchronous.fit.combined import combined
from tfdist.synchronous.fit.indivisible import (
    FUNCTIONS,
    IndivisibleLossError,
    indivisible,
)
from tfdist.synchronous.fit.kind import (
    CONSTANTS,
    INDIVISIBLE,
    SUMS_OVER_ROWS,
    WEIGHED,
    Kind,
)
from tfdist.synchronous.fit.loops import BRANCHES, LOOPS, of_branches, of_loop
from tfdist.synchronous.fit.row_lists import is_turn
from tfdist.synchronous.fit.row_rules import follow
from tfdist.synchronous.fit.rows import (
    Known,
    NotOwnError,
    Operand,
    Rows,
    has_rows,
    somewhere,
)

# The number of rows that these return depends on the values of the examples.
_SELECTIONS = frozenset(["Where", "Unique", "UniqueV2", "DynamicPartition"])
_RANDOM = re.compile("Random|Multinomial|TruncatedNormal|PyFunc")
_TAKING = frozenset(["GatherV2", "GatherNd", "Slice", "StridedSlice", "Unpack"])
# To the longest row of the replica, unless the result has a static size.
_PADDED = frozenset(["RaggedTensorToTensor", "SparseToDense"])
_MEASURES = frozenset(["Shape", "ShapeN", "Size"])
_PASSES_POSITIONS = frozenset(
    ["Cast", "ExpandDims", "Identity", "Pack", "Reshape", "Squeeze", "StridedSlice"]
)
_FOLLOWED = WEIGHED | {Kind.ROWS, Kind.EXAMPLE, Kind.SUM, Kind.COUNT}
_COLLECTIVE = re.compile("^Collective")


class KindReader:
    """Reads kinds from the graph of one replica's step.

    Args:
        is_same: Returns whether a tensor is known to be equal on every replica.
        kind_of_variable: Returns the kind of a variable's value, given its handle.
        has_varying_rows: Whether a batch holds ragged or sparse values. Their number is
            not proportional to the number of examples.
        is_strict: Whether to tell apart what depends on how a batch is divided: TAKEN and
            MIXED. Otherwise each replica's part counts as a batch of its own.
        counters: The tensors that are the number of the turn of a loop.
    """

    def __init__(
        self,
        is_same: Callable[[Any], bool] = lambda tensor: False,
        kind_of_variable: Callable[[Any], Kind] = lambda handle: Kind.SAME,
        has_varying_rows: bool = False,
        is_strict: bool = True,
        counters: Collection[Any] = (),
    ) -> None:
        self._is_strict = is_strict
        self.is_same = is_same
        self._kind_of_variable = kind_of_variable
        self._has_varying_rows = has_varying_rows
        self.kinds: dict[Any, Kind] = {}
        self.rows: dict[Any, Rows] = {}
        self._selects: dict[tf.Operation, bool] = {}
        self._results: dict[tf.Operation, list[Known]] = {}
        self._counters = frozenset(counters)

    def kind_of(self, tensor: Any) -> Kind:
        """Returns the kind of a tensor, symbolic or eager."""
        # Iterative: a graph may be deeper than Python's stack.
        pending = [tensor]
        while pending:
            each = pending[-1]
            inputs = [] if self._at_once(each) else inputs_of(each)
            missing = [one for one in inputs if one.ref() not in self.kinds]
            if missing and each.ref() not in self.kinds:
                pending += missing
                continue
            pending.pop()
            if each.ref() not in self.kinds:
                kinds = [self.kinds[one.ref()] for one in inputs]
                self.kinds[each.ref()] = self._at_once(each) or self._of(
                    each, inputs, kinds
                )
        return self.kinds[tensor.ref()]

    def begin_with(self, batch: Sequence[Any]) -> None:
        """Marks tensors as rows, whatever they were computed from."""
        for each in batch:
            if tf.is_tensor(each) and is_symbolic(each):
                self.note(each, Known(Kind.ROWS, Rows()))

    def known(self, tensor: Any) -> Known:
        """Returns the kind of a tensor, and where its rows are."""
        return Known(self.kind_of(tensor), self.rows.get(tensor.ref()))

    def note(self, tensor: Any, known: Known) -> Kind:
        """Takes what is known of a tensor for granted. Returns its kind."""
        self.kinds[tensor.ref()] = known.kind
        if known.rows:
            self.rows[tensor.ref()] = known.rows
        return known.kind

    def parts_of(self, tensor: Any) -> tuple[list[Any], list[tf.Operation]]:
        """Decomposes a tensor of kind OTHER.

        Returns:
            The tensors of other kinds from which it is computed, and the operations that
            compute it.

        Raises:
            IndivisibleLossError: If a part is of a kind that is INDIVISIBLE.
        """
        parts: dict[Any, Any] = {}
        operations: dict[tf.Operation, None] = {}
        pending = [tensor]
        while pending:
            each = pending.pop()
            kind = self.kind_of(each)
            if kind in INDIVISIBLE or (
                kind is Kind.OTHER and FUNCTIONS.search(each.op.type)
            ):
                raise self.error_of(each)
            if kind is not Kind.OTHER:
                parts[each.ref()] = each
            elif each.op not in operations:
                operations[each.op] = None
                pending += inputs_of(each)
        return list(parts.values()), list(operations)

    def error_of(self, tensor: Any) -> IndivisibleLossError:
        """Returns the error for a tensor that cannot be combined from the replicas' own."""
        return indivisible(self.origin(tensor).op, self.kind_of(tensor))

    def origin(self, tensor: Any) -> Any:
        """Returns the first tensor of the same kind on the path to this one."""
        kind = self.kind_of(tensor)
        while True:
            unknown = [each for each in inputs_of(tensor) if self.kind_of(each) is kind]
            if not unknown:
                return tensor
            tensor = unknown[0]

    def selection_of(self, tensor: Any) -> Any:
        """Returns the rows whose mean, times a constant, a SELECTED tensor is."""
        while True:
            inputs = inputs_of(tensor)
            selected = [i for i in inputs if self.kind_of(i) is Kind.SELECTED]
            if not selected:
                return inputs[0]
            tensor = selected[0]

    def _at_once(self, tensor: Any) -> Kind | None:
        """Returns the kind if it does not depend on the kinds of the inputs."""
        if not is_symbolic(tensor) or self.is_same(tensor):
            return Kind.SAME
        op = tensor.op
        if op.type == "ReadVariableOp":
            return self._kind_of_variable(handle_of(op))
        # A collective has exchanged its result already.
        is_same = op.type == "Const" or tensor.dtype == tf.resource
        return Kind.SAME if is_same or _COLLECTIVE.match(op.type) else None

    def _count(self, rows: Any) -> Kind:
        return Kind.SUM if self._rows_vary(rows) else Kind.COUNT

    def _of(self, tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]) -> Kind:
        op = tensor.op
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            return self._of_call(tensor, inputs)
        if self._is_strict and op.type in LOOPS | BRANCHES:
            return self._of_control_flow(tensor, inputs)
        if "GetNext" in op.type or (not inputs and has_rows(tensor)):
            return self.note(tensor, Known(Kind.ROWS, Rows()))
        if op.type == "Placeholder":
            # A placeholder without an input is an argument of a nested tf.function.
            given = self.known(inputs[0]) if inputs else Known(Kind.UNKNOWN)
            return self.note(tensor, given)
        for poison in (Kind.MIXED, Kind.TAKEN):
            if self._is_strict and poison in kinds:
                return poison
        if set(kinds) <= CONSTANTS:
            is_drawn = Kind.DRAWN in kinds or _RANDOM.search(op.type)
            return Kind.DRAWN if is_drawn else Kind.SAME
        if self._is_strict and self._is_of_example(op, inputs, kinds):
            return Kind.EXAMPLE
        if op.type in _MEASURES:
            of = tensor.value_index
            if kinds[of] in (Kind.ROWS, Kind.POSITIONS):
                return self._count(inputs[of]) if op.type == "Size" else Kind.SHAPE
            return kinds[of]
        if has_rows(tensor):
            return self._of_rows(tensor, inputs, kinds)
        if self._is_strict and Kind.POSITIONS in kinds and not is_of_gradient(op):
            return Kind.TAKEN
        if Kind.UNKNOWN in kinds:
            return Kind.UNKNOWN
        if Kind.ROWS in kinds:
            if op.type == "Mean" and tensor.dtype.is_floating:
                return Kind.SELECTED if self._rows_vary(inputs[0]) else Kind.MEAN
            if op.type in _TAKING and self._is_strict and not is_apart(op):
                return Kind.TAKEN
            return Kind.SUM if op.type in SUMS_OVER_ROWS else Kind.UNKNOWN
        if op.type == "Sub" and is_of_ragged(op):
            # One less than the boundaries of rows, which each replica has one more of.
            return Kind.UNKNOWN
        if Kind.SHAPE in kinds:
            return self._of_shape(tensor, inputs)
        return combined(tensor, list(zip(inputs, kinds, strict=True)), self.kind_of)

    def _of_rows(
        self, tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> Kind:
        """Returns the kind of a tensor with an unknown dimension, and finds its rows."""
        operands = [Operand(each, self.known(each)) for each in inputs]
        if not self._is_strict:
            return self.note(tensor, Known(Kind.ROWS, somewhere(tensor, operands)))
        if _numbers_rows(tensor.op, kinds) and not is_apart(tensor.op):
            return Kind.POSITIONS
        try:
            rows = follow(
                Application(
                    tensor,
                    operands,
                    lambda each: self.rows.get(each.ref()),
                    self.kind_of,
                    self._counters,
                )
            )
        except NotOwnError as error:
            of_size = tensor.shape[1:].is_fully_defined()
            is_padded = tensor.op.type in _PADDED and not of_size
            takes_positions = Kind.POSITIONS in kinds and not is_of_gradient(tensor.op)
            if takes_positions or is_padded or not is_apart(tensor.op):
                return error.kind
            rows = somewhere(tensor, operands)
        return self.note(tensor, Known(Kind.ROWS, rows))

    def _of_call(self, tensor: Any, inputs: Sequence[Any]) -> Kind:
        """Returns the kind of a nested tf.function's result, from its own graph."""
        graph = _tf.function_graph(tensor.op)
        if graph is None:
            return Kind.ROWS if has_rows(tensor) else Kind.UNKNOWN
        given = [self.known(each) for each in inputs]
        known, _ = self._read(graph, given, set(), [tensor.value_index])
        return self.note(tensor, known[0])

    def _of_control_flow(self, tensor: Any, inputs: Sequence[Any]) -> Kind:
        """Returns the kind of a result of a loop or a branch."""
        op = tensor.op
        if op not in self._results:
            of = of_loop if op.type in LOOPS else of_branches
            self._results[op] = of(
                op, [self.known(each) for each in inputs], self._read
            )
        known = self._results[op][tensor.value_index]
        if has_rows(tensor) and known.kind in INDIVISIBLE and is_apart(op):
            operands = [Operand(each, self.known(each)) for each in inputs]
            return self.note(tensor, Known(Kind.ROWS, somewhere(tensor, operands)))
        if has_rows(tensor) or known.kind in _FOLLOWED:
            return self.note(tensor, known)
        return Kind.UNKNOWN

    def _is_of_example(
        self, op: tf.Operation, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> bool:
        """Returns whether the turn of a loop computes it from its own example alone."""
        if op.type == "TensorListGetItem":
            is_list = self.known(inputs[0]).is_list_of_examples
            return is_list and is_turn(inputs[1], self._counters)
        return Kind.EXAMPLE in kinds and set(kinds) <= CONSTANTS | {Kind.EXAMPLE}

    def _read(
        self,
        graph: Any,
        given: list[Known],
        counters: set[Any],
        places: Sequence[int] | None = None,
    ) -> tuple[list[Known], set[Kind]]:
        """Reads a function's graph: see `loops.Read`.

        Args:
            graph: The graph.
            given: What is known of its inputs.
            counters: Those of them that are the number of a loop's turn.
            places: Of the outputs that are read; None for all.
        """
        inside = KindReader(
            self.is_same,
            self._kind_of_variable,
            self._has_varying_rows,
            self._is_strict,
            self._counters | counters,
        )
        for each, known in zip(graph.inputs, given, strict=True):
            inside.note(each, known)
        outputs = graph.outputs
        if places is not None:
            outputs = [outputs[place] for place in places]
        kinds = [inside.kind_of(each) for each in outputs]
        sources = {kinds[0]}
        if kinds[0] is Kind.OTHER:
            with contextlib.suppress(IndivisibleLossError):
                parts, _ = inside.parts_of(outputs[0])
                sources = {inside.kind_of(each) for each in parts}
        return [inside.known(each) for each in outputs], sources

    def _of_shape(self, tensor: Any, inputs: Sequence[Any]) -> Kind:
        op, shape = tensor.op, inputs[0]
        if op.type in ("Identity", "Cast"):
            return Kind.SHAPE
        measured = _measured(shape)
        if measured is None:
            return Kind.UNKNOWN
        if op.type == "Prod":
            return self._count(measured)
        rows = self.rows.get(measured.ref(), Rows())
        if op.type == "StridedSlice":
            begin = tf.get_static_value(inputs[1])
            if begin is not None and shape.shape.rank == 1:
                is_masked = op.get_attr("begin_mask") & 1
                first = 0 if is_masked else int(begin[0]) % (shape.shape[0] or 1)
                is_scalar = tensor.shape.rank == 0
                if is_scalar and first == rows.axis:
                    return self._count(measured)
                # The sizes of the other axes are those of an example, equal everywhere.
                if is_scalar or first > rows.axis:
                    return Kind.SAME
                return Kind.UNKNOWN if rows.axis else Kind.SHAPE
        return Kind.UNKNOWN if rows.axis else Kind.OTHER

    def _rows_vary(self, tensor: Any) -> bool:
        """Returns whether the number of rows may depend on the examples' values."""
        if self._has_varying_rows:
            return True
        visited: list[tf.Operation] = []
        pending, found = [tensor], False
        while pending and not found:
            each = pending.pop()
            if not is_symbolic(each):
                continue
            if each.op not in self._selects:
                self._selects[each.op] = each.op.type in _SELECTIONS
                visited.append(each.op)
                pending += inputs_of(each)
            found = self._selects[each.op]
        if found:
            # True for some of these only. Exchanging a count is never wrong, just slower.
            self._selects.update(dict.fromkeys(visited, True))
        return found


def _numbers_rows(op: tf.Operation, kinds: Sequence[Kind]) -> bool:
    """Returns whether an operation returns places of rows, or passes them on."""
    if op.type in ("Range", "Where"):
        return True
    is_passed_on = op.type in _PASSES_POSITIONS and kinds[0] is Kind.POSITIONS
    allowed = CONSTANTS | ({Kind.ROWS} if op.type == "Pack" else set())
    return is_passed_on and set(kinds[1:]) <= allowed


def _measured(shape: Any) -> Any:
    """Returns the tensor whose shape this is; None for one that a function was given."""
    while shape.op.type not in _MEASURES:
        inputs = inputs_of(shape)
        if not inputs:
            return None
        shape = inputs[0]
    return shape.op.inputs[shape.value_index]
