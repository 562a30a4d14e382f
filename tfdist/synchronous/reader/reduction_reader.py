"""Reads from a traced graph how a replica's number relates to the whole batch's.

A loss, a metric's increment or a log is a function of the examples. One process computes
it from all of them, a replica from its own. Which correction makes both equal follows from
the operations: a mean over examples is weighted by the replica's share, a sum is added up.
The numbers themselves do not tell one from the other, and a `train_step` may compute its
loss with any function, so the graph is read. Nothing is executed, and everything
unknown is refused.
"""

import re
from collections.abc import Callable, Hashable, Sequence

import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import (
    is_apart,
    is_of_keras,
    is_of_ragged,
    repeats_ragged_rows,
)
from tfdist._support.types import Nest
from tfdist.keras.graph import (
    constant,
    handle_of,
    inputs_of,
    is_symbolic,
    source_of,
)
from tfdist.synchronous.reader.combined import combined
from tfdist.synchronous.reader.indivisible import (
    FUNCTIONS,
    IndivisibleLossError,
    indivisible,
)
from tfdist.synchronous.reader.reduction import CONSTANTS, SUMS_OVER_ROWS, Reduction
from tfdist.synchronous.reader.row_rules import contracts_rows, follow
from tfdist.synchronous.reader.rows import (
    Application,
    KindOf,
    NotOwnError,
    Operand,
    Rows,
    has_rows,
    kept_apart,
)
from tfdist.synchronous.reader.sizes import MEASURES, of_shape

Known = tuple[Reduction, Rows | None]
"""The kind of a tensor, and its rows if that is ROWS."""

# The number of rows that these return depends on the values of the examples.
_SELECTIONS = frozenset(
    ["Where", "Unique", "UniqueV2", "DynamicPartition", "StringSplitV2"]
)
# The key of a seed is as random as the seed.
_RANDOM = re.compile("Random(?!GetKey)|Multinomial|TruncatedNormal|PyFunc")
_TAKING = frozenset(["GatherV2", "GatherNd", "Slice", "StridedSlice", "Unpack"])
# To the longest row of the replica, unless the result has a static size.
_PADDED = frozenset(["RaggedTensorToTensor", "SparseToDense"])
_COLLECTIVE = re.compile("^Collective")


class ReductionReader:
    """Reads kinds from the graph of one replica's step.

    Args:
        given: Returns the kind of a tensor if more is known of it than its graph shows,
            such as the result of an exchange, else None.
        kind_of_variable: Returns the kind of a variable's value, given its handle.
        has_varying_rows: Whether a batch holds ragged or sparse values. Their number is
            not proportional to the number of examples.
        is_strict: Whether to tell apart what depends on how a batch is divided: TAKEN and
            MIXED. Otherwise each replica's part counts as a batch of its own.
    """

    def __init__(
        self,
        given: Callable[[tf.Tensor], Reduction | None] = lambda tensor: None,
        kind_of_variable: KindOf = lambda handle: Reduction.SAME,
        has_varying_rows: bool = False,
        is_strict: bool = True,
    ) -> None:
        self._is_strict = is_strict
        self.given = given
        self._kind_of_variable = kind_of_variable
        self._has_varying_rows = has_varying_rows
        self.kinds: dict[Hashable, Reduction] = {}
        self.rows: dict[Hashable, Rows] = {}
        # The row splits of ragged values of the batch, and the numbers of those.
        self.splits: set[Hashable] = set()
        self._sizes_of_splits: set[Hashable] = set()
        self._outputs: dict[tuple[tf.Operation, str], list[Known] | None] = {}

    def kind_of(self, tensor: tf.Tensor) -> Reduction:
        """Returns the kind of a tensor, symbolic or eager."""
        # Iterative: a graph may be deeper than Python's stack.
        pending = [tensor]
        while pending:
            each = pending.pop()
            if each.ref() in self.kinds:
                continue
            kind = self._at_once(each)
            inputs = [] if kind else inputs_of(each)
            if missing := [one for one in inputs if one.ref() not in self.kinds]:
                pending += [each, *missing]
                continue
            kinds = [self.kinds[one.ref()] for one in inputs]
            self.kinds[each.ref()] = kind or self._of(each, inputs, kinds)
        return self.kinds[tensor.ref()]

    def begin_with(self, batch: Nest) -> None:
        """Marks the tensors of a batch as rows, whatever they were computed from."""
        for each in tf.nest.flatten(batch, expand_composites=True):
            if tf.is_tensor(each) and is_symbolic(each):
                self.note(each, Reduction.ROWS, Rows())
        for each in tf.nest.flatten(batch):
            if isinstance(each, tf.RaggedTensor):
                self.splits |= {part.ref() for part in each.nested_row_splits}

    def known(self, tensor: tf.Tensor) -> Known:
        """Returns the kind of a tensor, and its rows."""
        return self.kind_of(tensor), self.rows.get(tensor.ref())

    def note(
        self, tensor: tf.Tensor, kind: Reduction, rows: Rows | None = None
    ) -> Reduction:
        """Takes the known kind of a tensor for granted, and returns it."""
        self.kinds[tensor.ref()] = kind
        if rows:
            self.rows[tensor.ref()] = rows
        return kind

    def error_of(self, tensor: tf.Tensor) -> IndivisibleLossError:
        """Returns the error for a tensor that cannot be combined from the replicas' own."""
        return indivisible(self.origin(tensor).op, self.kind_of(tensor))

    def origin(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first tensor of the same kind on the path to this one."""
        kind = self.kind_of(tensor)
        while True:
            alike = [each for each in inputs_of(tensor) if self.kind_of(each) is kind]
            if not alike:
                return tensor
            tensor = alike[0]

    def _at_once(self, tensor: tf.Tensor) -> Reduction | None:
        """Returns the kind if it does not depend on the kinds of the inputs."""
        if not is_symbolic(tensor):
            return Reduction.SAME
        if (given := self.given(tensor)) is not None:
            return given
        op = tensor.op
        if op.type == "ReadVariableOp":
            return self._kind_of_variable(handle_of(op))
        # A collective has exchanged its result already.
        is_same = op.type == "Const" or tensor.dtype == tf.resource
        return Reduction.SAME if is_same or _COLLECTIVE.match(op.type) else None

    def _of(
        self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor], kinds: Sequence[Reduction]
    ) -> Reduction:
        op = tensor.op
        if "GetNext" in op.type or (not inputs and has_rows(tensor)):
            return self.note(tensor, Reduction.ROWS, Rows())
        if op.type == "Placeholder":
            # A placeholder without an input is an argument of a nested tf.function.
            known = self.known(inputs[0]) if inputs else (Reduction.UNKNOWN, None)
            return self.note(tensor, *known)
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            return self._of_call(tensor, inputs)
        for poison in (Reduction.MIXED, Reduction.TAKEN):
            if self._is_strict and poison in kinds:
                return poison
        if FUNCTIONS.search(op.type) and "PyFunc" not in op.type:
            return self._of_control_flow(tensor, inputs, kinds)
        if set(kinds) <= CONSTANTS:
            is_drawn = Reduction.DRAWN in kinds or _RANDOM.search(op.type)
            return Reduction.DRAWN if is_drawn else Reduction.SAME
        if op.type in MEASURES:
            of = tensor.value_index
            if kinds[of] is not Reduction.ROWS:
                return kinds[of]
            is_size = op.type == "Size"
            return self._count(tensor, inputs[of]) if is_size else Reduction.SHAPE
        if has_rows(tensor):
            return self._of_rows(tensor, inputs)
        return self._of_number(tensor, inputs, kinds)

    def _of_number(
        self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor], kinds: Sequence[Reduction]
    ) -> Reduction:
        """Returns the kind of a number that is computed from others than constants."""
        op = tensor.op
        if op.type == "Sub" and inputs[0].ref() in self._sizes_of_splits:
            # With `whole_batch=False`, Keras's count stays Keras's to combine.
            is_number_of_rows = self._is_strict and constant(inputs[1]) == 1
            return Reduction.SUM if is_number_of_rows else Reduction.UNKNOWN
        if Reduction.UNKNOWN in kinds:
            return Reduction.UNKNOWN
        if Reduction.ROWS in kinds:
            return self._over_rows(tensor, inputs, set(kinds))
        if op.type == "Sub" and is_of_ragged(op):
            # As `_count` says, but of splits that the step computes.
            return Reduction.UNKNOWN
        if Reduction.SHAPE in kinds:
            return of_shape(tensor, inputs, self.rows, self._count)
        return combined(tensor, list(zip(inputs, kinds, strict=True)), self.kind_of)

    def _over_rows(
        self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor], kinds: set[Reduction]
    ) -> Reduction:
        """Returns the kind of a number that is computed from rows."""
        op = tensor.op
        is_strict = self._is_strict and not is_apart(op)
        if op.type in _TAKING and is_strict:
            return Reduction.TAKEN
        is_mean = op.type == "Mean" and tensor.dtype.is_floating
        if not is_mean and op.type not in SUMS_OVER_ROWS:
            return Reduction.UNKNOWN
        if is_strict and not kinds <= CONSTANTS | {Reduction.ROWS}:
            return Reduction.OTHER
        if is_strict and not contracts_rows(self._application(tensor, inputs)):
            return Reduction.MIXED
        mean = Reduction.OTHER if self._has_varying_rows else Reduction.MEAN
        return mean if is_mean else Reduction.SUM

    def _of_rows(self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor]) -> Reduction:
        """Returns the kind of a tensor with an unknown dimension, and finds its rows."""
        op, at = tensor.op, self._application(tensor, inputs)
        try:
            rows = follow(at) if self._is_strict else kept_apart(at)
        except NotOwnError as error:
            of_size = tensor.shape[1:].is_fully_defined()
            is_padded = op.type in _PADDED and not of_size
            is_known = is_of_keras(op) or repeats_ragged_rows(op)
            is_selected = op.type in _SELECTIONS and not is_known
            if is_padded or is_selected or not is_apart(op):
                return error.kind
            rows = kept_apart(at)
        return self.note(tensor, Reduction.ROWS, rows)

    def _application(
        self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor]
    ) -> Application:
        operands = [Operand(each, *self.known(each)) for each in inputs]
        return Application(
            tensor, operands, lambda each: self.rows.get(each.ref()), self.kind_of
        )

    def _of_call(self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor]) -> Reduction:
        """Returns the kind of a nested tf.function's result, from its own graph."""
        outputs = self._read(tensor.op, "f", inputs)
        if outputs is None:
            return Reduction.ROWS if has_rows(tensor) else Reduction.UNKNOWN
        return self.note(tensor, *outputs[tensor.value_index])

    def _of_control_flow(
        self, tensor: tf.Tensor, inputs: Sequence[tf.Tensor], kinds: Sequence[Reduction]
    ) -> Reduction:
        """Returns the kind of a result of a condition or a loop.

        A condition that is the same everywhere is read. A loop is not, unless it computes
        from constants alone.
        """
        op, is_loop = tensor.op, tensor.op.type.endswith("While")
        names = ("body", "cond") if is_loop else ("then_branch", "else_branch")
        given = inputs if is_loop else inputs[1:]
        read: list[list[Known]] = []
        if "Case" not in op.type and (not is_loop or set(kinds) <= CONSTANTS):
            read = [self._read(op, name, given) or [] for name in names]
        if read and all(read):
            found = {kind for outputs in read for kind, _ in outputs} | set(kinds)
            if found <= CONSTANTS:
                return Reduction.DRAWN if Reduction.DRAWN in found else Reduction.SAME
            if not is_loop and kinds[0] is Reduction.SAME:
                one, other = (outputs[tensor.value_index] for outputs in read)
                if one == other:
                    return self.note(tensor, *one)
                # A constant is the mean of its copies.
                if {one[0], other[0]} <= {Reduction.SAME, Reduction.MEAN}:
                    return Reduction.MEAN
        is_divided = has_rows(tensor)
        return self._of_rows(tensor, inputs) if is_divided else Reduction.UNKNOWN

    def _read(
        self, op: tf.Operation, name: str, given: Sequence[tf.Tensor]
    ) -> list[Known] | None:
        """Returns the known kinds of a function's outputs; None without its graph.

        Args:
            op: The operation that calls it.
            name: The attribute that has the function.
            given: The function's inputs, in this graph.
        """
        if (op, name) not in self._outputs:
            graph = _tf.function_graph(op, name)
            self._outputs[op, name] = self._outputs_of(graph, given) if graph else None
        return self._outputs[op, name]

    def _outputs_of(self, graph: tf.Graph, given: Sequence[tf.Tensor]) -> list[Known]:
        inside = ReductionReader(
            self.given, self._kind_of_variable, self._has_varying_rows, self._is_strict
        )
        for inner, outer in zip(graph.inputs, given, strict=True):
            inside.note(inner, *self.known(outer))
            if source_of(outer).ref() in self.splits:
                inside.splits.add(inner.ref())
        return [inside.known(each) for each in graph.outputs]

    def _count(self, size: tf.Tensor, of: tf.Tensor) -> Reduction:
        """Returns the kind of the number of elements of a tensor along its first axis."""
        if source_of(of).ref() in self.splits:
            # One more than there are rows, on each replica: these do not add up.
            self._sizes_of_splits.add(size.ref())
            return Reduction.UNKNOWN
        return Reduction.SUM if self._has_varying_rows else Reduction.COUNT
