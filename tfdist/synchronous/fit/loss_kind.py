"""Reads from a traced graph how a replica's number relates to the whole batch's.

A loss, a metric's increment or a log is a function of the examples. One process computes
it from all of them, a replica from its own. Which correction makes both equal follows from
the operations: a mean over examples is weighted by the replica's share, a sum is added up.
The numbers themselves do not tell one from the other, and a `train_step` may compute its
loss with any function, so `KindReader` reads the graph. It executes nothing.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._authors import is_apart
from tfdist.keras.graph import handle_of, inputs_of, is_symbolic
from tfdist.synchronous.fit.indivisible import (
    FUNCTIONS,
    IndivisibleLossError,
    indivisible,
)
from tfdist.synchronous.fit.kind import (
    ADDITIVE,
    CHOICES,
    CONSTANTS,
    INDIVISIBLE,
    PRODUCTS,
    QUOTIENTS,
    SUMS_OVER_ROWS,
    UNARY,
    Kind,
    of_product,
    of_quotient,
    of_sum,
)
from tfdist.synchronous.fit.loops import (
    BRANCHES,
    IN_A_LIST,
    LOOPS,
    Known,
    of_branches,
    of_loop,
)
from tfdist.synchronous.fit.row_rules import Application, follow, is_turn
from tfdist.synchronous.fit.rows import (
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
_PASSES_POSITIONS = frozenset(
    ["Cast", "ExpandDims", "Identity", "Pack", "Reshape", "Squeeze"]
)
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
    """

    def __init__(
        self,
        is_same: Callable[[Any], bool] = lambda tensor: False,
        kind_of_variable: Callable[[Any], Kind] = lambda handle: Kind.SAME,
        has_varying_rows: bool = False,
        is_strict: bool = True,
    ) -> None:
        self._is_strict = is_strict
        self._is_same = is_same
        self._kind_of_variable = kind_of_variable
        self._has_varying_rows = has_varying_rows
        self.kinds: dict[Any, Kind] = {}
        self.rows: dict[Any, Rows] = {}
        self._selects: dict[tf.Operation, bool] = {}
        self._results: dict[tf.Operation, list[Known]] = {}
        self._counters: set[Any] = set()

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
                self.kinds[each.ref()] = Kind.ROWS
                self.rows[each.ref()] = Rows()

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
        if not is_symbolic(tensor) or self._is_same(tensor):
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
            return self._of_call(tensor, inputs, kinds)
        if self._is_strict and op.type in LOOPS | BRANCHES:
            return self._of_control_flow(tensor, inputs, kinds)
        if "GetNext" in op.type or (not inputs and has_rows(tensor)):
            self.rows[tensor.ref()] = Rows()
            return Kind.ROWS
        if op.type == "Placeholder":
            if inputs and inputs[0].ref() in self.rows:
                self.rows[tensor.ref()] = self.rows[inputs[0].ref()]
            # A placeholder without an input is an argument of a nested tf.function.
            return kinds[0] if inputs else Kind.UNKNOWN
        if self._is_strict and (poison := {Kind.TAKEN, Kind.MIXED} & set(kinds)):
            return poison.pop()
        if set(kinds) <= CONSTANTS:
            is_drawn = Kind.DRAWN in kinds or _RANDOM.search(op.type)
            return Kind.DRAWN if is_drawn else Kind.SAME
        if self._is_strict and self._is_of_example(op, inputs, kinds):
            return Kind.EXAMPLE
        if op.type in ("Shape", "Size") and {Kind.ROWS, Kind.POSITIONS} & set(kinds):
            return Kind.SHAPE if op.type == "Shape" else self._count(inputs[0])
        if has_rows(tensor):
            return self._of_rows(tensor, inputs, kinds)
        if self._is_strict and Kind.POSITIONS in kinds:
            return Kind.TAKEN
        if Kind.UNKNOWN in kinds:
            return Kind.UNKNOWN
        if Kind.ROWS in kinds:
            if op.type == "Mean":
                return Kind.SELECTED if self._rows_vary(inputs[0]) else Kind.MEAN
            if op.type in _TAKING and self._is_strict and not is_apart(op):
                return Kind.TAKEN
            return Kind.SUM if op.type in SUMS_OVER_ROWS else Kind.UNKNOWN
        if Kind.SHAPE in kinds:
            return self._of_shape(tensor, inputs)
        return self._combined(tensor, list(zip(inputs, kinds, strict=True)))

    def _of_rows(
        self, tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> Kind:
        """Returns the kind of a tensor with an unknown dimension, and finds its rows."""
        operands = self._operands(inputs, kinds)
        if not self._is_strict:
            self.rows[tensor.ref()] = somewhere(tensor, operands)
            return Kind.ROWS
        if _numbers_rows(tensor.op, kinds) and not is_apart(tensor.op):
            return Kind.POSITIONS
        try:
            rows = follow(
                Application(
                    tensor,
                    operands,
                    lambda each: self.rows.get(each.ref()),
                    self._counters,
                )
            )
        except NotOwnError as error:
            if Kind.POSITIONS in kinds or not is_apart(tensor.op):
                return error.kind
            rows = somewhere(tensor, operands)
        self.rows[tensor.ref()] = rows
        return Kind.ROWS

    def _of_call(
        self, tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> Kind:
        """Returns the kind of a nested tf.function's result, from its own graph."""
        graph = _tf.function_graph(tensor.op)
        if graph is None:
            return Kind.ROWS if has_rows(tensor) else Kind.UNKNOWN
        given = self._known(inputs, kinds)
        known, _ = self._read(graph, given, set(), [tensor.value_index])
        return self._take(tensor, known[0])

    def _of_control_flow(
        self, tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> Kind:
        """Returns the kind of a result of a loop or a branch."""
        op = tensor.op
        if op not in self._results:
            of = of_loop if op.type in LOOPS else of_branches
            self._results[op] = of(op, self._known(inputs, kinds), self._read)
        known = self._results[op][tensor.value_index]
        if has_rows(tensor) and known.kind in INDIVISIBLE and is_apart(op):
            self.rows[tensor.ref()] = somewhere(tensor, self._operands(inputs, kinds))
            return Kind.ROWS
        is_followed = known.kind in CONSTANTS | {Kind.ROWS, Kind.EXAMPLE}
        if has_rows(tensor) or is_followed:
            return self._take(tensor, known)
        return Kind.UNKNOWN

    def _is_of_example(
        self, op: tf.Operation, inputs: Sequence[Any], kinds: Sequence[Kind]
    ) -> bool:
        """Returns whether the turn of a loop computes it from its own example alone."""
        if op.type == "TensorListGetItem":
            rows = self.rows.get(inputs[0].ref())
            is_in_list = rows is not None and rows.axis == IN_A_LIST
            return is_in_list and is_turn(inputs[1], self._counters)
        return Kind.EXAMPLE in kinds and set(kinds) <= CONSTANTS | {Kind.EXAMPLE}

    def _operands(self, inputs: Sequence[Any], kinds: Sequence[Kind]) -> list[Operand]:
        return [
            Operand(each, kind, self.rows.get(each.ref()))
            for each, kind in zip(inputs, kinds, strict=True)
        ]

    def _known(self, inputs: Sequence[Any], kinds: Sequence[Kind]) -> list[Known]:
        return [
            Known(kind, self.rows.get(each.ref()))
            for each, kind in zip(inputs, kinds, strict=True)
        ]

    def _take(self, tensor: Any, known: Known) -> Kind:
        if known.rows:
            self.rows[tensor.ref()] = known.rows
        return known.kind

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
            self._is_same,
            self._kind_of_variable,
            self._has_varying_rows,
            self._is_strict,
        )
        inside._counters = self._counters | counters
        for each, known in zip(graph.inputs, given, strict=True):
            inside.kinds[each.ref()] = inside._take(each, known)
        outputs = graph.outputs
        if places is not None:
            outputs = [outputs[place] for place in places]
        kinds = [inside.kind_of(each) for each in outputs]
        sources = {kinds[0]}
        if kinds[0] is Kind.OTHER:
            with contextlib.suppress(IndivisibleLossError):
                parts, _ = inside.parts_of(outputs[0])
                sources = {inside.kind_of(each) for each in parts}
        return inside._known(outputs, kinds), sources

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

    def _combined(self, tensor: Any, pairs: list[tuple[Any, Kind]]) -> Kind:
        op = tensor.op
        kinds = [kind for _, kind in pairs]
        if op.type == "IdentityN":
            return kinds[tensor.value_index]
        if op.type in UNARY:
            return kinds[0] if set(kinds[1:]) <= CONSTANTS else Kind.OTHER
        if op.type == "ConcatV2":
            return _sum(pairs[:-1])
        if op.type in ADDITIVE:
            return _sum(pairs)
        if op.type in CHOICES:
            return _sum(pairs[1:]) if kinds[0] in CONSTANTS else Kind.OTHER
        if op.type in PRODUCTS:
            return of_product(kinds)
        if op.type == "Prod" and pairs[0][0].op.type == "Pack":
            # The size of a shape with one unknown dimension.
            return of_product([self.kind_of(each) for each in pairs[0][0].op.inputs])
        if op.type in QUOTIENTS:
            return of_quotient(*kinds)
        if op.type == "Maximum" and Kind.COUNT in kinds:
            # max(n, 1) is n: no batch is empty.
            others = [each for each, kind in pairs if kind is not Kind.COUNT]
            return Kind.COUNT if all(map(_is_at_most_one, others)) else Kind.OTHER
        return Kind.OTHER

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
    while shape.op.type != "Shape":
        inputs = inputs_of(shape)
        if not inputs:
            return None
        shape = inputs[0]
    return shape.op.inputs[0]


def _sum(pairs: Iterable[tuple[Any, Kind]]) -> Kind:
    # Python's `sum` starts with 0, which changes no kind.
    return of_sum(
        kind for each, kind in pairs if kind not in CONSTANTS or not _is_zero(each)
    )


def _is_zero(tensor: Any) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and not value.any()


def _is_at_most_one(tensor: Any) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and bool((value <= 1).all())
