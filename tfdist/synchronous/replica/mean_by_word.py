"""A replica's part of a step whose numbers are means, by `replica_loss="mean"`.

This is the convention of data parallel training: each replica differentiates what it has
computed from its own rows, and the step applies the mean of the gradients. It is weighted by
the numbers of rows, so that a mean over the rows becomes that of the whole batch. Nothing is
read from the step's graph, so a sum over the rows becomes a mean of sums.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.context import having
from tfdist._support.types import Gradient, Nest
from tfdist.keras.computation import current_computation
from tfdist.synchronous.replica.collectives import of_last_replica
from tfdist.synchronous.replica.step import ReplicaStep, on_values


def weight_of_mean(step: ReplicaStep, target: tf.Tensor, given: Nest) -> tf.Tensor:
    """Returns the factor of a target's gradient, times the program's own: None for ones.

    It is 1 where replicas have as many rows, and their gradients are divided by the number
    of replicas after the backward pass: a `tf.custom_gradient` that clips sees the
    gradient of the replica's own mean.
    """
    given = tf.ones_like(target) if given is None else given
    return given * tf.cast(step.weight, target.dtype)


def own_gradient(step: ReplicaStep, gradient: Gradient) -> Gradient:
    """Returns the gradient of a replica's own tensor, without the replica's weight."""
    return on_values(
        lambda each: tf.math.divide_no_nan(each, tf.cast(step.weight, each.dtype)),
        gradient,
    )


def over_replicas(step: ReplicaStep, total: Gradient) -> Gradient:
    """Returns the mean over the replicas of a gradient that was added up."""
    return on_values(lambda each: each / tf.cast(step.replicas, each.dtype), total)


def part_of_mean(
    step: ReplicaStep, value: tf.Tensor, is_increment: bool = False
) -> tf.Tensor:
    """Returns this replica's part of a log or a weight, or what it adds to a metric.

    A metric of the rows adds up those of all replicas. One that is given a single number,
    such as the mean of a loss, counts it by the replica's share.
    """
    if is_increment and not _is_given_number(step):
        return step.counted(value)
    if not value.dtype.is_floating:
        return of_last_replica(step, value)
    # A replica without examples may have computed 0 / 0, and NaN * 0 is still NaN.
    return tf.math.multiply_no_nan(value, tf.cast(step.share, value.dtype))


def state_of_mean(step: ReplicaStep, state: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns the state of a metric that a step assigns on this replica."""
    if _is_given_number(step) and value.dtype.is_floating:
        return state + part_of_mean(step, value - state)
    return tf.where(step.count > 0, value, state)


def updating_metric(
    metric: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> contextlib.AbstractContextManager[None]:
    """A context in which this thread's replica updates a metric."""
    step = getattr(current_computation(), "step", None)
    if not isinstance(step, ReplicaStep):
        return contextlib.nullcontext()
    given = [each for each in (*args, *kwargs.values()) if each is not None]
    return having(step, metric=metric, given=given)


def _is_given_number(step: ReplicaStep) -> bool:
    if len(step.given) != 1:
        return False
    is_number = isinstance(step.given[0], int | float)
    return is_number or bool(getattr(step.given[0], "shape", None) == ())
