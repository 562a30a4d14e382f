"""Sums over the replicas of a step: gradients, statistics, metrics."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import Gradient, Nest
from tfdist.synchronous.replica.step import ReplicaStep

# TensorFlow's collectives cannot add these dtypes up: they travel as a wider one.
CARRIED_AS = {
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}


def reduce_gradients(
    gradients: Sequence[Gradient | None],
    options: tf.distribute.experimental.CommunicationOptions | None,
) -> list[Any]:
    """Adds up each gradient over all replicas.

    The place to decide in what order, and in what buckets, gradients travel.

    Cost: about 2 (R - 1) / R times the gradients' bytes on every worker's link with R
    replicas; the values and indices of all replicas for an `IndexedSlices`.

    Args:
        gradients: A tensor, an `IndexedSlices` or None for each variable.
        options: The strategy's `tf.distribute.experimental.CommunicationOptions`.

    Returns:
        The sums, in the order of `gradients`.
    """
    present = [each for each in gradients if each is not None]
    sums = iter(_sum_by_dtype(present, options))
    return [None if each is None else next(sums) for each in gradients]


def sum_tensors(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds up each tensor over all replicas, in one message per dtype."""
    carried = [tf.cast(t, CARRIED_AS.get(t.dtype, t.dtype)) for t in tensors]
    sums = _sum_by_dtype(carried, None)
    return [tf.cast(s, t.dtype) for s, t in zip(sums, tensors, strict=True)]


def exchanged(step: ReplicaStep, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds up parts over all replicas, and marks the sums as equal on all of them."""
    # A rehearsal traces one replica outside `strategy.run`: nobody else to add up with.
    if step.is_rehearsal:
        # New tensors, as sums are: what is known of the parts does not hold for them.
        sums = [tf.identity(each) for each in parts]
    else:
        step.check_can_exchange()
        sums = sum_tensors(parts)
    step.is_same(sums)
    return sums


def differentiable_sums(
    step: ReplicaStep, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Adds up tensors over all replicas, and so does their gradient, of any order.

    Every replica's loss depends on each sum. The gradient of one replica's part is
    therefore the sum of the upstream gradients of all replicas.
    """
    token, *sums = sums_after(step.token, *tensors)
    step.proceed(token)
    return sums


@tf.custom_gradient
def sums_after(token: tf.Tensor, *tensors: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
    """Adds up tensors, after all that the token depends on; gradients in reverse order.

    A tape goes back through parallel paths in any order, which may be another one on each
    replica, and exchanges match by their order.
    """
    return [tf.identity(token), *sum_tensors(tensors)], sums_after


def _sum_by_dtype(
    values: Sequence[Nest],
    options: tf.distribute.experimental.CommunicationOptions | None,
) -> list[Any]:
    # TensorFlow concatenates tensors into packs, which fails for mixed dtypes. The order
    # of the dtypes is that of `values`, the same on all replicas: collectives match by
    # their order.
    extended = tf.distribute.get_strategy().extended
    sums: list[Any] = [None] * len(values)
    for dtype in dict.fromkeys(each.dtype for each in values):
        places = [i for i, each in enumerate(values) if each.dtype == dtype]
        reduced = extended.sum_over_replicas([values[i] for i in places], options)
        for place, value in zip(places, reduced, strict=True):
            sums[place] = value
    return sums


def of_first_replica(value: tf.Tensor) -> tf.Tensor:
    """Returns the first replica's value there and zeros elsewhere: their sum is it."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.where(replica == 0, value, tf.zeros_like(value))


def of_last_replica(step: ReplicaStep, value: tf.Tensor) -> tf.Tensor:
    """Returns the value of the last replica with examples there and zeros elsewhere.

    Of a batch that is smaller than the number of replicas, `row_range` gives the first
    replicas nothing, but the last one always a row. Where workers have data of their own,
    that of the last one may have ended.
    """
    last = step.replicas - 1 if step.spokesman is None else step.spokesman
    return tf.where(step.replica == last, value, tf.zeros_like(value))
