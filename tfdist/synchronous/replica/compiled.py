"""Compiled losses and metrics that do not separate: on the whole batch, on each replica."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.synchronous.replica.all_rows import gathered
from tfdist.synchronous.replica.collectives import exchanged, of_last_replica
from tfdist.synchronous.replica.step import ReplicaStep

_MASK = "_keras_mask"


def of_all_examples(
    step: ReplicaStep, *structures: Any, may_reuse: bool = False
) -> list[Any]:
    """Returns the whole batch's targets, predictions and weights, with their masks.

    Cost: as for `gathered`.

    Args:
        step: The replica's step.
        structures: Nested structures of tensors and None.
        may_reuse: Whether tensors that an earlier call has gathered serve again, at no
            cost. A tape knows only what is gathered while it records.
    """
    leaves = [each for each in keras.tree.flatten(structures) if each is not None]
    masks = [getattr(each, _MASK, None) for each in leaves]
    wanted = [*leaves, *(mask for mask in masks if mask is not None)]
    # A branch of a condition has a graph of its own, which knows no tensors of others.
    graph = tf.compat.v1.get_default_graph()
    if step.gathered_in is not graph:
        step.gathered, step.gathered_in = {}, graph
    missing = {
        id(each): each
        for each in wanted
        if not (may_reuse and id(each) in step.gathered)
    }
    whole = gathered(step, list(missing.values()), one_per_example=True)
    # With the tensor itself, so that its id is not used again.
    pairs = zip(missing.values(), whole, strict=True)
    step.gathered |= dict(zip(missing, pairs, strict=True))
    for each, mask in zip(leaves, masks, strict=True):
        if mask is not None:
            setattr(step.gathered[id(each)][1], _MASK, step.gathered[id(mask)][1])
    return [
        keras.tree.map_structure(
            lambda each: None if each is None else step.gathered[id(each)][1], structure
        )
        for structure in structures
    ]


def update_on_whole_batch(
    step: ReplicaStep, metric: keras.Metric, update: Callable[[], None]
) -> None:
    """Updates a metric from the whole batch. The last replica keeps its state.

    States of replicas are added up, and each of them computes the same. So one has the
    state, and the others have zeros.

    Cost: one message of the states, unless the metric is a mean of a function's values.
    """
    if not step.is_rehearsal and type(metric) is not keras.metrics.MeanMetricWrapper:
        # An update may read its state: a maximum so far. After a reset to another value
        # than 0, each replica has a part of it.
        summed = _summed(metric)
        states = [tf.convert_to_tensor(each.value) for each in summed]
        for variable, total in zip(summed, exchanged(step, states), strict=True):
            variable.assign(total)
    update()
    if not step.is_rehearsal:
        for variable in _summed(metric):
            value = of_last_replica(step, tf.convert_to_tensor(variable.value))
            variable.assign(value)


def _summed(metric: keras.Metric) -> list[keras.Variable]:
    return [each for each in metric.variables if each.aggregation == "sum"]
