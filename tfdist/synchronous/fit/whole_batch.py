"""Corrects a replica's loss, metric or log for the whole batch.

Each replica computes from its own part of the batch. This module turns its gradients and
numbers into parts whose sum over the replicas is what one process computes from all
examples. The correction follows from the `Kind` of each number.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._authors import is_of_keras
from tfdist.synchronous.fit.decomposed import Decomposed
from tfdist.synchronous.fit.exchange import of_last_replica
from tfdist.synchronous.fit.indivisible import IndivisibleLossError
from tfdist.synchronous.fit.kind import ADDED_UP, INDIVISIBLE, WEIGHED
from tfdist.synchronous.fit.mean_by_word import part_of_mean, weight_of_mean
from tfdist.synchronous.fit.replica import ReplicaStep


def part_of(
    step: ReplicaStep,
    value: tf.Tensor,
    may_exchange: bool = True,
    is_increment: bool = False,
) -> tf.Tensor:
    """Returns this replica's part of a number: all parts add up to the whole batch's.

    What Keras's own layers compute from a part of the batch becomes the mean of the
    replicas' numbers, weighted by their shares, if it is no function of sums and means.

    Cost: nothing for sums, means and linear functions of both; else one message of a few
    scalars, if `may_exchange`.

    Args:
        step: The replica's step.
        value: The number that the replica computed from its own examples.
        may_exchange: Whether the replicas may exchange sums and means for it.
        is_increment: Whether it is added to the state of a metric. The increments of
            Keras's own metrics are sums over examples, in whatever way.

    Raises:
        IndivisibleLossError: If anybody else computes what is no function of sums and
            means, unless the strategy has `whole_batch=False` or `replica_loss="mean"`.
    """
    if step.is_mean:
        return part_of_mean(step, value, is_increment)
    kind = step.kind_of(value)
    if kind in INDIVISIBLE:
        is_by_keras = _is_by_keras(step, value)
        if is_by_keras and is_increment:
            return step.counted(value)
        if step.whole_batch and not is_by_keras:
            raise step.reader.error_of(value)
    if kind in ADDED_UP:
        if step.has_rows or step.states_in(value):
            return value
        # The stand-in row of a replica without examples must not be added up.
        return tf.where(step.count > 0, value, tf.zeros_like(value))
    # An integer cannot be scaled by a share. The last replica always has examples.
    if not value.dtype.is_floating:
        return of_last_replica(step, value)
    if kind in WEIGHED or kind in INDIVISIBLE:
        return step.scaled(value)
    try:
        value = Decomposed(step, value, may_exchange).value
    except IndivisibleLossError:
        return step.scaled(value)
    # A replica without examples may have computed 0 / 0, and NaN * 0 is still NaN.
    return tf.math.multiply_no_nan(value, tf.cast(step.share, value.dtype))


def weighed_targets(
    step: ReplicaStep, targets: Sequence[tf.Tensor], output_gradients: Sequence[Any]
) -> tuple[list[tf.Tensor], list[Any]]:
    """Returns the tensors to differentiate in place of a loss, and their weights.

    The replicas' gradients of the results add up to the gradient that one process computes
    of the whole batch's loss. A mean is weighted by the replica's share of the rows, and
    not by 1 / replicas: shares differ when the batch does not divide evenly, as the last
    one of an epoch. For `replica_loss="mean"`, see `weight_of_mean`.

    Cost: as for `part_of`.

    Args:
        step: The replica's step.
        targets: The tensors whose sum is differentiated.
        output_gradients: The factor of each target's gradient, of its shape; None for
            ones.

    Raises:
        IndivisibleLossError: If a target is not a function of sums and means over
            examples.
    """
    tensors: list[tf.Tensor] = []
    weights: list[Any] = []
    for target, given in zip(targets, output_gradients, strict=True):
        if step.is_mean:
            tensors.append(target)
            weights.append(weight_of_mean(step, target, given))
            continue
        kind = step.kind_of(target)
        if kind in ADDED_UP:
            tensors.append(target)
            weights.append(given)
        elif kind in WEIGHED or (kind in INDIVISIBLE and not step.whole_batch):
            tensors.append(target)
            weights.append(
                step.scaled(tf.ones_like(target) if given is None else given)
            )
        else:
            for part, weight in Decomposed(step, target).slopes(given):
                tensors.append(part)
                weights.append(weight)
    return tensors, weights


def _is_by_keras(step: ReplicaStep, value: tf.Tensor) -> bool:
    # Without a graph, all else was refused in the rehearsal.
    return step.known_kinds is not None or is_of_keras(step.reader.origin(value).op)
