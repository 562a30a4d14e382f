"""Gradients of the whole batch's loss, on each replica.

TensorFlow's gradients keep examples apart if the operations they belong to do, and they are
linear: those of all replicas add up to the whole batch's. Of those that a program wrote
itself, by `tf.custom_gradient`, the ones around rows do where they keep rows apart. Around a
weight, they see a replica's part of its gradient.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import Author, is_apart, is_of_tfdist, made_in
from tfdist._support.types import Gradient, Nest
from tfdist.synchronous.reader.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader
from tfdist.synchronous.replica.collectives import differentiable_sums, reduce_gradients
from tfdist.synchronous.replica.mean_by_word import over_replicas, own_gradient
from tfdist.synchronous.replica.step import ReplicaStep
from tfdist.synchronous.replica.whole_batch import weighed_targets


def of_whole_batch(
    step: ReplicaStep,
    tape_gradient: Callable[..., Any],
    target: Nest,
    sources: Nest,
    output_gradients: Nest,
    unconnected: tf.UnconnectedGradients,
) -> Any:
    """Returns the gradient of the whole batch's loss.

    `tape_gradient` is `tf.GradientTape.gradient` on this replica; the others are its arguments.
    Gradients are added up here and not in the optimizer, so that whatever a `train_step`
    does with them in between, such as clipping or measuring the norm, gives the same
    result as in one process.
    """
    targets = [tf.convert_to_tensor(each) for each in tf.nest.flatten(target)]
    given = [None] * len(targets)
    if output_gradients is not None:
        given = tf.nest.flatten(output_gradients)
    tensors, weights = weighed_targets(step, targets, given)
    step.is_differentiable |= _tf.could_be_recorded()
    with step.differentiating(targets if output_gradients is None else None):
        own = tape_gradient(
            tensors, sources, _all_or_none(tensors, weights), unconnected
        )
    if step.known_kinds is None and not step.is_mean:
        check_own_gradients(step.reader, tf.compat.v1.get_default_graph(), own)
    return _added_up(step, sources, own)


def check_own_gradients(
    reader: ReductionReader, graph: tf.Graph, gradients: Nest
) -> None:
    """Checks that gradient functions of the program keep examples apart.

    Raises:
        IndivisibleLossError: If one does not, or is around a weight or a number.
    """
    own = list(_own_gradients(graph))
    for op in own:
        inputs = [each for each in op.inputs if each.op.type != "Const"]
        if op.graph is not graph or {*map(reader.kind_of, inputs)} != {Reduction.ROWS}:
            raise IndivisibleLossError(
                "a tf.custom_gradient must keep examples apart, because each replica has the "
                "gradient of its part of the batch; received one around a weight or a number, "
                "or in a tf.function of the step"
                f"{made_in(op, Author.PROGRAM, Author.PACKAGE)}. Let tape."
                "gradient(...) return the gradient of the whole batch, and clip or change "
                f"that before optimizer.apply(...). {remedies()}"
            )
    for each in tf.nest.flatten(gradients, expand_composites=True) if own else []:
        refused = (Reduction.MIXED, Reduction.TAKEN, Reduction.OTHER)
        if each is not None and reader.kind_of(each) in refused:
            raise reader.error_of(each)


def _own_gradients(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Returns the operations whose gradient a program wrote, in a graph and its calls."""
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = _tf.function_graph(op)
            yield from _own_gradients(called) if called is not None else ()
        elif _tf.has_custom_gradient(op) and not (is_apart(op) or is_of_tfdist(op)):
            yield op


def _all_or_none(
    tensors: list[tf.Tensor | None], weights: list[tf.Variable]
) -> list[Any] | None:
    if all(weight is None for weight in weights):
        return None
    return [
        tf.ones_like(tensor) if weight is None else weight
        for tensor, weight in zip(tensors, weights, strict=True)
    ]


def _added_up(step: ReplicaStep, sources: Nest, gradients: Nest) -> Nest:
    """Adds up gradients of variables. Those of a replica's tensors stay its own."""
    flat = tf.nest.flatten(gradients)
    places = [
        i for i, each in enumerate(tf.nest.flatten(sources)) if _is_variable(each)
    ]
    parts = [flat[i] for i in places]
    rows = [_rows_of_all(step, each) for each in parts]
    if step.is_mean:
        flat = [own_gradient(step, each) for each in flat]
    # Where every replica has the same rows, their values are added up row by row.
    values = [
        part if indices is None else part.values
        for part, indices in zip(parts, rows, strict=True)
    ]
    counted = step.counted(values)
    if all(each is None for each in counted):
        summed = counted
    elif step.is_rehearsal:
        # New tensors, as sums are: what is known of the parts does not hold for them.
        summed = [None if each is None else tf.identity(each) for each in counted]
    else:
        step.check_can_exchange()
        # An outer tape may differentiate them, for a penalty.
        is_recorded = _tf.could_be_recorded()
        summed = _differentiable(step, counted) if is_recorded else _reduced(counted)
    if step.is_mean:
        summed = [over_replicas(step, each) for each in summed]
    step.is_same([each for each in summed if each is not None])
    for place, part, indices, total in zip(places, parts, rows, summed, strict=True):
        flat[place] = (
            total
            if indices is None
            else tf.IndexedSlices(total, indices, part.dense_shape)
        )
    return tf.nest.pack_sequence_as(gradients, flat)


def _rows_of_all(step: ReplicaStep, gradient: Gradient) -> tf.Tensor | None:
    """Returns a sparse gradient's rows if they do not depend on the examples, else None.

    The rows of a position embedding, for example, are equal on every replica. Concatenated,
    each row would occur once per replica. One process has one gradient per row, and an
    optimizer that squares gradients needs the sum.
    """
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    if is_sparse and step.kind_of(gradient.indices) is Reduction.SAME:
        return gradient.indices
    return None


def _reduced(gradients: list[Gradient | None]) -> list[Gradient | None]:
    options = tf.distribute.get_strategy().extended.communication_options
    return reduce_gradients(gradients, options)


def _differentiable(
    step: ReplicaStep, gradients: list[Gradient | None]
) -> list[Gradient | None]:
    """Adds up gradients that an outer tape may differentiate, such as for a penalty."""
    present = [tf.convert_to_tensor(each) for each in gradients if each is not None]
    sums = iter(differentiable_sums(step, present))
    return [None if each is None else next(sums) for each in gradients]


def _is_variable(source: tf.Tensor | tf.Variable) -> bool:
    return isinstance(source, keras.Variable | tf.Variable)
