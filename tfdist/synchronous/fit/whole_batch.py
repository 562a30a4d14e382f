"""Corrects a replica's loss, metric or log for the whole batch.

Each replica computes from its own part of the batch. This module turns its gradients and
numbers into parts whose sum over the replicas is what one process computes from all
examples. The correction follows from the `Kind` of each number.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.decomposed import Decomposed
from tfdist.synchronous.fit.exchange import of_last_replica
from tfdist.synchronous.fit.indivisible import IndivisibleLossError
from tfdist.synchronous.fit.kind import ADDED_UP, INDIVISIBLE, WEIGHED
from tfdist.synchronous.fit.replica import ReplicaStep


def part_of(
    step: ReplicaStep, value: tf.Tensor, may_exchange: bool = True
) -> tf.Tensor:
    """Returns this replica's part of a number: all parts add up to the whole batch's.

    A number that is not a function of sums and means over examples becomes the mean of
    the replicas' numbers, weighted by their shares.

    Cost: nothing for sums, means and linear functions of both; else one message of a few
    scalars, if `may_exchange`.

    Args:
        step: The replica's step.
        value: The number that the replica computed from its own examples.
        may_exchange: Whether the replicas may exchange sums and means for it.
    """
    kind = step.kind_of(value)
    if kind in ADDED_UP:
        # The stand-in row of a replica without examples must not be added up.
        return tf.where(step.count > 0, value, tf.zeros_like(value))
    # An integer cannot be scaled by a share. The last replica always has examples.
    if not value.dtype.is_floating:
        return of_last_replica(step, value)
    if kind in INDIVISIBLE and step.known_kinds is None:
        step.reader.mixing[step.reader.origin(value).op] = None
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

    The replicas' gradients of the results add up to the gradient that one process
    computes of the whole batch's loss. A mean is weighted by the replica's share of the
    rows, and not by 1 / replicas: shares differ when the batch does not divide evenly,
    as the last one of an epoch.

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
            for part, weight in Decomposed(step, target).slopes(given):
                tensors.append(part)
                weights.append(weight)
    return tensors, weights
