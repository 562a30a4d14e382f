"""Decomposition of a number into the sums and means over examples it depends on."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.exchange import exchanged
from tfdist.synchronous.fit.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.fit.kind import Kind
from tfdist.synchronous.fit.replica import ReplicaStep

_EXCHANGED = (Kind.MEAN, Kind.SELECTED, Kind.SUM)


class Decomposed:
    """A function of sums and means over examples, evaluated for the whole batch.

    A function that is linear in them is evaluated at this replica's estimates: the mean
    of the replicas' values, weighted by their shares, is the value for the batch. A
    nonlinear function has no such mean: the replicas first exchange the sums and means,
    and each evaluates it at those of the whole batch.

    Args:
        step: The replica's step.
        value: A number of kind OTHER.
        may_exchange: Whether the replicas may exchange sums and means.

    Raises:
        IndivisibleLossError: If the number is not such a function, or needs an exchange
            that is not allowed.
    """

    def __init__(
        self, step: ReplicaStep, value: tf.Tensor, may_exchange: bool = True
    ) -> None:
        if step.known_kinds is not None:
            # Without a graph there are no operations to copy.
            raise IndivisibleLossError(
                "the loss is neither a sum nor a mean over examples, and cannot be "
                "taken apart with run_eagerly=True. Compile the model with "
                f"run_eagerly=False. {remedies()}"
            )
        self._step = step
        self._parts, operations = step.reader.parts_of(value)
        self._kinds = [step.reader.kind_of(each) for each in self._parts]
        pairs = list(zip(self._parts, self._kinds, strict=True))
        self._have_state = [
            kind is Kind.SUM and bool(step.states_in(part)) for part, kind in pairs
        ]
        self._points = [self._estimate(*each) for each in pairs]
        self._weights = [
            tf.ones([], _floating(part.dtype))
            if has_state
            else self._weight_of(part, kind)
            for has_state, (part, kind) in zip(self._have_state, pairs, strict=True)
        ]
        self.value = _copy(value, operations, self._parts, self._points)
        if not self._is_linear():
            if not may_exchange:
                raise IndivisibleLossError(f"{value.name} is not linear in its parts")
            self._exchange()
            self.value = _copy(value, operations, self._parts, self._points)

    def slopes(self, given: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the parts that gradients flow through, with the slope along each.

        Differentiating the parts with these weights is the chain rule: the slopes are
        taken at the whole batch's point, the rest on this replica's own examples.

        Args:
            given: The factor of the number's gradient; None for ones.
        """
        slopes = tf.gradients(self.value, self._points, given)
        return [
            (part, slope * tf.cast(self._weights[i], slope.dtype))
            for i, (part, slope) in enumerate(zip(self._parts, slopes, strict=True))
            if slope is not None
        ]

    def _estimate(self, part: tf.Tensor, kind: Kind) -> tf.Tensor:
        """Returns this replica's estimate of the whole batch's number."""
        if kind is Kind.SUM and part.dtype.is_floating:
            return self._step.unscaled(part)
        if kind in (Kind.SUM, Kind.COUNT):
            return self._for_all_examples(part)
        if kind is Kind.SHAPE:
            rows = self._for_all_examples(part[:1])
            return tf.concat([rows, part[1:]], 0)
        return tf.identity(part)

    def _weight_of(self, part: tf.Tensor, kind: Kind) -> tf.Tensor:
        """Returns the weight with which the replicas' numbers add up to the batch's."""
        if kind is Kind.SUM:
            return tf.cast(self._step.count > 0, part.dtype)
        return self._step.scaled(tf.ones([], _floating(part.dtype)))

    def _for_all_examples(self, number: tf.Tensor) -> tf.Tensor:
        # A replica without examples computes on one row that does not count.
        rows = tf.maximum(self._step.count, 1)
        if number.dtype.is_floating:
            ratio = tf.cast(self._step.total, tf.float64) / tf.cast(rows, tf.float64)
            return tf.cast(tf.cast(number, tf.float64) * ratio, number.dtype)
        number_64 = tf.cast(number, tf.int64) * self._step.total // rows
        return tf.cast(number_64, number.dtype)

    @property
    def _exchanged(self) -> list[int]:
        return [i for i, kind in enumerate(self._kinds) if kind in _EXCHANGED]

    def _is_linear(self) -> bool:
        points = [self._points[i] for i in self._exchanged]
        # A replica without rows cannot estimate the others' states.
        is_unknown = any(self._have_state) and not self._step.has_rows
        if (
            is_unknown
            or Kind.SELECTED in self._kinds
            or not all(p.dtype.is_floating for p in points)
        ):
            return False
        slopes = tf.gradients(self.value, points)
        # Some functions are constant in pieces and have no slope, such as a rounded number.
        for slope, point in zip(slopes, points, strict=True):
            if slope is None and _depend([self.value], [point]):
                return False
        # A function is linear where its slopes are constant.
        return not _depend([each for each in slopes if each is not None], points)

    def _exchange(self) -> None:
        """Sets the points to the whole batch's sums and means."""
        step, places = self._step, self._exchanged
        # A mean over selected examples is weighted by how many each replica selected,
        # which its share of the batch does not tell.
        sizes = {
            i: tf.cast(tf.size(step.reader.selection_of(self._parts[i])), tf.float32)
            for i in places
            if self._kinds[i] is Kind.SELECTED
        }
        counted = [step.counted(each) for each in sizes.values()]
        for (i, size), total in zip(
            sizes.items(), exchanged(step, counted), strict=True
        ):
            self._weights[i] = tf.math.divide_no_nan(step.counted(size), total)
        parts = [
            # With no examples or none selected the number may be 0 / 0, and NaN times a
            # weight of 0 is still NaN.
            tf.math.multiply_no_nan(self._parts[i], self._weights[i])
            if self._parts[i].dtype.is_floating
            else self._parts[i]
            if self._have_state[i]
            else step.counted(self._parts[i])
            for i in places
        ]
        for i, total in zip(places, exchanged(step, parts), strict=True):
            self._points[i] = total


def _floating(dtype: tf.DType) -> tf.DType:
    return dtype if dtype.is_floating else tf.float32


def _copy(
    value: tf.Tensor,
    operations: Sequence[tf.Operation],
    parts: Sequence[tf.Tensor],
    points: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Computes the operations again, from points in place of parts."""
    if not operations:
        return points[0]
    definition = tf.compat.v1.GraphDef()
    definition.versions.CopyFrom(value.graph.graph_def_versions)
    for op in operations:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        # Control inputs name operations that the copied graph does not contain.
        inputs = [name for name in node.input if not name.startswith("^")]
        node.ClearField("input")
        node.input.extend(inputs)
        # Colocation constraints name the operations of the original, too.
        node.attr.pop("_class", None)
    names = [each.name for each in parts]
    (copy,) = tf.graph_util.import_graph_def(
        definition,
        input_map=dict(zip(names, points, strict=True)),
        return_elements=[value.name],
        name="whole_batch",
    )
    copy.set_shape(value.shape)
    return copy


def _depend(tensors: Sequence[tf.Tensor], on: Sequence[tf.Tensor]) -> bool:
    """Returns whether any tensor is computed from one of others, in the same graph."""
    wanted = {each.op for each in on}
    pending = [each.op for each in tensors]
    visited: set[tf.Operation] = set()
    while pending:
        op = pending.pop()
        if op in wanted:
            return True
        if op not in visited:
            visited.add(op)
            pending += [each.op for each in op.inputs]
    return False
