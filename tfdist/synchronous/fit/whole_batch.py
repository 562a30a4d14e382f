"""What a replica computes of a loss, a metric or a log, put right for the whole batch.

Each replica has a part of the batch, and computes from its own examples. Here its
gradients and its numbers become parts whose sum over the replicas is what one process
computes from all examples. How follows from the `Kind` of each number.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.liveness.step_error import is_by_user, user_line
from tfdist.synchronous.fit.exchange import (
    of_first_replica,
    of_last_replica,
    sum_tensors,
)
from tfdist.synchronous.fit.kind import ADDED_UP, INDIVISIBLE, WEIGHED, Kind
from tfdist.synchronous.fit.loss_kind import IndivisibleLossError
from tfdist.synchronous.fit.replica import ReplicaStep
from tfdist.variables.increment import NotAdditiveError


def part_of(
    step: ReplicaStep, value: tf.Tensor, may_exchange: bool = True
) -> tf.Tensor:
    """Returns this replica's part of a number: the sum of all is the whole batch's.

    What is no function of sums and means over examples becomes the mean of what the
    replicas have, by their shares.

    Cost: nothing for sums, means, and what is linear in both; else one message of some
    scalars, if that is allowed.

    Args:
        step: The replica's step.
        value: What the replica computed from its own examples.
        may_exchange: Whether the replicas may exchange what it takes.
    """
    kind = step.kind_of(value)
    if kind in ADDED_UP:
        # What a replica computes from an example that stands in for none is no part.
        return tf.where(step.count > 0, value, tf.zeros_like(value))
    if not value.dtype.is_floating:
        return of_last_replica(step, value)
    if kind in INDIVISIBLE and step.known_kinds is None:
        step.reader.mixing[step.reader.origin(value).op] = None
    if kind in WEIGHED or kind in INDIVISIBLE:
        return step.scaled(value)
    try:
        value = _Decomposed(step, value, may_exchange).value
    except IndivisibleLossError:
        return step.scaled(value)
    # A replica without examples may have computed 0 / 0, which does not count.
    return tf.math.multiply_no_nan(value, tf.cast(step.share, value.dtype))


def weighed_targets(
    step: ReplicaStep, targets: Sequence[tf.Tensor], output_gradients: Sequence[Any]
) -> tuple[list[tf.Tensor], list[Any]]:
    """Returns what to differentiate in place of a loss, and with which weights.

    The gradients of the results are parts: their sum over the replicas is the gradient
    that one process computes of the loss of the whole batch.

    Cost: as of `part_of`.

    Args:
        step: The replica's step.
        targets: The tensors whose sum is differentiated.
        output_gradients: The gradient that each is multiplied by, of its shape; None
            for ones.

    Raises:
        IndivisibleLossError: If a target is no function of sums and means over
            examples.
    """
    tensors: list[tf.Tensor] = []
    weights: list[Any] = []
    for target, given in zip(targets, output_gradients, strict=True):
        kind = step.kind_of(target)
        if kind in ADDED_UP:
            tensors.append(target)
            weights.append(given)
        elif kind in WEIGHED:
            tensors.append(target)
            weights.append(
                step.scaled(tf.ones_like(target) if given is None else given)
            )
        else:
            for part, weight in _Decomposed(step, target).slopes(given):
                tensors.append(part)
                weights.append(weight)
    return tensors, weights


_EXCHANGED = (Kind.MEAN, Kind.SELECTED, Kind.SUM)


class _Decomposed:
    """A number as a function of sums and means over examples, at those of the batch.

    A function that is linear in them is evaluated at this replica's estimates of them:
    the mean of its values, by shares, is its value for the batch. Any other is evaluated
    at the batch's own, which the replicas tell each other.

    Args:
        step: The replica's step.
        value: A number of kind OTHER.
        may_exchange: Whether the replicas may tell each other anything.

    Raises:
        IndivisibleLossError: If it is no such function, or not without an exchange.
    """

    def __init__(
        self, step: ReplicaStep, value: tf.Tensor, may_exchange: bool = True
    ) -> None:
        if step.known_kinds is not None:
            raise IndivisibleLossError(
                "the loss is neither a sum nor a mean over examples, and with "
                "run_eagerly=True it cannot be taken apart. Compile the model with "
                "run_eagerly=False"
            )
        self._step = step
        self._parts, operations = step.reader.parts_of(value)
        self._kinds = [step.reader.kind_of(each) for each in self._parts]
        pairs = list(zip(self._parts, self._kinds, strict=True))
        self._points = [self._estimate(*each) for each in pairs]
        self._weights = [self._weight_of(*each) for each in pairs]
        self.value = _copy(value, operations, self._parts, self._points)
        if not self._is_linear():
            if not may_exchange:
                raise IndivisibleLossError(f"{value.name} is not linear in its parts")
            self._exchange()
            self.value = _copy(value, operations, self._parts, self._points)

    def slopes(self, given: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The parts that gradients flow through, and how much the number follows each.

        Args:
            given: What the number's gradient is multiplied by; None for ones.
        """
        slopes = tf.gradients(self.value, self._points, given)
        return [
            (part, slope * tf.cast(self._weights[i], slope.dtype))
            for i, (part, slope) in enumerate(zip(self._parts, slopes, strict=True))
            if slope is not None
        ]

    def _estimate(self, part: tf.Tensor, kind: Kind) -> tf.Tensor:
        """What the batch's number is, as far as this replica can tell."""
        if kind is Kind.SUM and part.dtype.is_floating:
            return self._step.unscaled(part)
        if kind in (Kind.SUM, Kind.COUNT):
            return self._for_all_examples(part)
        if kind is Kind.SHAPE:
            rows = self._for_all_examples(part[:1])
            return tf.concat([rows, part[1:]], 0)
        return tf.identity(part)

    def _weight_of(self, part: tf.Tensor, kind: Kind) -> tf.Tensor:
        """What the number times this, added up over the replicas, is the batch's."""
        if kind is Kind.SUM:
            return tf.cast(self._step.count > 0, part.dtype)
        return self._step.scaled(tf.ones([], _floating(part.dtype)))

    def _for_all_examples(self, number: tf.Tensor) -> tf.Tensor:
        # A replica without examples computes one that stands in for none.
        rows = tf.maximum(self._step.count, 1)
        number_64 = tf.cast(number, tf.int64) * self._step.total // rows
        return tf.cast(number_64, number.dtype)

    @property
    def _exchanged(self) -> list[int]:
        return [i for i, kind in enumerate(self._kinds) if kind in _EXCHANGED]

    def _is_linear(self) -> bool:
        points = [self._points[i] for i in self._exchanged]
        if Kind.SELECTED in self._kinds or not all(p.dtype.is_floating for p in points):
            return False
        slopes = [each for each in tf.gradients(self.value, points) if each is not None]
        return not _depend(slopes, points)

    def _exchange(self) -> None:
        """Moves the points to where the whole batch's sums and means are."""
        step, places = self._step, self._exchanged
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
            # No examples that count, or none selected: the number may be 0 / 0.
            tf.math.multiply_no_nan(self._parts[i], self._weights[i])
            if self._parts[i].dtype.is_floating
            else step.counted(self._parts[i])
            for i in places
        ]
        for i, total in zip(places, exchanged(step, parts), strict=True):
            self._points[i] = total


def _floating(dtype: tf.DType) -> tf.DType:
    return dtype if dtype.is_floating else tf.float32


def settle_written(step: ReplicaStep) -> None:
    """Gives every replica the same value of each variable that a step has written.

    Batch normalization is why: each replica computes the statistics of its own
    examples. A float variable becomes what it would be for all examples of the step, as
    far as that takes no message of its own, or else the mean; any other becomes what the
    first replica has given it.
    """
    if not step.written or step.is_rehearsal:
        return
    parts = []
    for variable, value in step.written.values():
        read = tf.convert_to_tensor(variable.value)
        if not read.dtype.is_floating:
            parts.append(of_first_replica(read))
        elif _is_of_this_graph(value):
            parts.append(part_of(step, value, may_exchange=False))
        else:
            parts.append(step.scaled(read))
    variables = [variable for variable, _ in step.written.values()]
    with step.updating():
        for variable, total in zip(variables, sum_tensors(parts), strict=True):
            variable.assign(total)


def settled_at_once(step: ReplicaStep, variable: Any, value: tf.Tensor) -> Any:
    """Returns what to set a variable to, if that is no mean over examples; else None.

    Sums, and functions of sums and means, become those of the whole batch right away, so
    that what the step computes from the variable next is the whole batch's too.

    Cost: one message for each such variable.

    Raises:
        NotAdditiveError: If the value is no function of sums and means over examples.
    """
    if step.known_kinds is not None or step.is_rehearsal:
        return None
    kind = step.kind_of(value)
    is_simple = kind in WEIGHED or not value.dtype.is_floating
    if is_simple or not (_is_of_this_graph(value) and is_by_user(value.op)):
        return None
    if kind in INDIVISIBLE or kind is Kind.ROWS:
        raise NotAdditiveError(
            f"{variable.path} is set to a value that each replica computes from its own "
            f"part of the batch{user_line(value.op)}, and that is no sum or mean over "
            "examples: it holds examples, say, or a maximum. Under a strategy in step "
            "there is no one value of it"
        )
    return exchanged(step, [part_of(step, value)])[0]


def _is_of_this_graph(value: tf.Tensor) -> bool:
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and getattr(value, "graph", None) is graph


def exchanged(step: ReplicaStep, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds up parts over all replicas, and notes that the sums are the same on each."""
    sums = list(parts) if step.is_rehearsal else sum_tensors(parts)
    step.is_same(sums)
    return sums


def _copy(
    value: tf.Tensor,
    operations: Sequence[tf.Operation],
    parts: Sequence[tf.Tensor],
    points: Sequence[tf.Tensor],
) -> tf.Tensor:
    """The value that the operations compute from points in place of parts."""
    if not operations:
        return points[0]
    definition = tf.compat.v1.GraphDef()
    definition.versions.CopyFrom(value.graph.graph_def_versions)
    for op in operations:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        inputs = [name for name in node.input if not name.startswith("^")]
        node.ClearField("input")
        node.input.extend(inputs)
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
    """Whether some tensors are computed from others of the same graph."""
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
