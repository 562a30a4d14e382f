"""Corrects a replica's loss, metric or log for the whole batch.

Each replica computes from its own part of the batch. This module turns its gradients and
numbers into parts whose sum over the replicas is what one process computes from all
examples. The correction follows from the `Reduction` of each number.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.authors import is_of_keras
from tfdist._support.types import Gradient
from tfdist.synchronous.reader.decomposed import computed_from_parts
from tfdist.synchronous.reader.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.reader.reduction import ADDED_UP, REFUSED, Reduction
from tfdist.synchronous.replica.collectives import of_last_replica
from tfdist.synchronous.replica.mean_by_word import part_of_mean, weight_of_mean
from tfdist.synchronous.replica.step import ReplicaStep


def part_of(
    step: ReplicaStep,
    value: tf.Tensor,
    is_increment: bool = False,
    is_weight: bool = False,
) -> tf.Tensor:
    """Returns this replica's part of a number: all parts add up to the whole batch's.

    What Keras's own layers compute from a part of the batch becomes the mean of the
    replicas' numbers, weighted by their shares, if it is no sum of means and sums.

    Args:
        step: The replica's step.
        value: The number that the replica computed from its own examples.
        is_increment: Whether it is added to the state of a metric. The increments of
            Keras's own metrics are sums over examples, in whatever way.
        is_weight: Whether it is the new value of a layer's weight, such as a moving mean.

    Raises:
        IndivisibleLossError: If anybody else computes what is no sum of means and sums,
            unless the strategy has `whole_batch=False` or `replica_loss="mean"`.
    """
    if step.is_mean:
        return part_of_mean(step, value, is_increment)
    kind = step.kind_of(value)
    if kind in REFUSED:
        # What Keras's losses return is the step's to combine, whoever computes it.
        is_trusted = (kind is not Reduction.OTHER or is_weight) and _is_by_keras(
            step, value
        )
        if is_trusted and is_increment:
            return step.counted(value)
        if not is_trusted and _is_refused(step, kind):
            raise _error_of(step, value)
    if kind is Reduction.LINEAR:
        return _part_of_terms(step, value)[0]
    return _part_of_kind(step, value, kind)


def _part_of_kind(step: ReplicaStep, value: tf.Tensor, kind: Reduction) -> tf.Tensor:
    if kind in ADDED_UP:
        if step.has_rows or step.states_in(value):
            return value
        # The stand-in row of a replica without examples must not be added up.
        return tf.where(step.count > 0, value, tf.zeros_like(value))
    # An integer cannot be scaled by a share.
    if not value.dtype.is_floating:
        return of_last_replica(step, value)
    if kind in REFUSED:
        # A replica without examples may have computed 0 / 0, and NaN * 0 is still NaN.
        return tf.math.multiply_no_nan(value, tf.cast(step.share, value.dtype))
    return step.scaled(value)


def _is_refused(step: ReplicaStep, kind: Reduction) -> bool:
    # With `whole_batch=False`, each part counts as a batch of its own. What is computed
    # from sums and means still is none of the whole batch.
    return kind in REFUSED and (step.whole_batch or kind is Reduction.OTHER)


def _error_of(step: ReplicaStep, value: tf.Tensor) -> IndivisibleLossError:
    if step.known_kinds is None:
        return step.reader.error_of(value)
    # Without a graph there are no operations to take apart.
    return IndivisibleLossError(
        "with run_eagerly=True, a loss must be a sum or a mean over examples; received "
        f"another. Compile the model with run_eagerly=False. {remedies()}"
    )


def _part_of_terms(
    step: ReplicaStep, value: tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the part of a LINEAR number, and the numbers it is computed from."""
    if step.known_kinds is not None:
        raise _error_of(step, value)
    return computed_from_parts(
        step.reader,
        value,
        lambda term, kind: _part_of_kind(step, term, kind),
        lambda count: _for_all_examples(step, count),
    )


def _for_all_examples(step: ReplicaStep, count: tf.Tensor) -> tf.Tensor:
    """Returns the whole batch's number, given one that is proportional to the rows."""
    # A replica without examples computes on one row that does not count.
    rows = tf.cast(tf.maximum(step.count, 1), tf.float64)
    ratio = tf.cast(step.total, tf.float64) / rows
    whole = tf.cast(count, tf.float64) * ratio
    return tf.cast(whole if count.dtype.is_floating else tf.round(whole), count.dtype)


def weighed_targets(
    step: ReplicaStep,
    targets: Sequence[tf.Tensor],
    output_gradients: Sequence[Gradient | None],
) -> tuple[list[tf.Tensor], list[Any]]:
    """Returns the tensors to differentiate in place of a loss, and their weights.

    The replicas' gradients of the results add up to the gradient that one process computes
    of the whole batch's loss. A mean is weighted by the replica's share of the rows, and
    not by 1 / replicas: shares differ when the batch does not divide evenly, as the last
    one of an epoch. For `replica_loss="mean"`, see `weight_of_mean`.

    Args:
        step: The replica's step.
        targets: The tensors whose sum is differentiated.
        output_gradients: Factors of the targets' gradients, of their shapes, or None.

    Raises:
        IndivisibleLossError: If a target is no sum of means and sums over examples.
    """
    tensors: list[tf.Tensor] = []
    weights: list[tf.Variable] = []
    for target, given in zip(targets, output_gradients, strict=True):
        if step.is_mean:
            tensors.append(target)
            weights.append(weight_of_mean(step, target, given))
            continue
        kind = step.kind_of(target)
        if _is_refused(step, kind):
            raise _error_of(step, target)
        if kind is Reduction.LINEAR:
            part, terms = _part_of_terms(step, target)
            # Partial ones: a term may be computed from another.
            slopes = tf.gradients(part, terms, given, stop_gradients=terms)
            found = [
                each for each in zip(terms, slopes, strict=True) if each[1] is not None
            ]
            tensors += [term for term, _ in found]
            weights += [slope for _, slope in found]
            continue
        if kind not in ADDED_UP:
            given = step.scaled(tf.ones_like(target) if given is None else given)
        tensors.append(target)
        weights.append(given)
    return tensors, weights


def _is_by_keras(step: ReplicaStep, value: tf.Tensor) -> bool:
    # Without a graph, all else was refused in the rehearsal.
    return step.known_kinds is not None or is_of_keras(step.reader.origin(value).op)
