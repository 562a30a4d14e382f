"""One value, on every replica, for the variables that a step assigns."""

from typing import Any

import keras
import tensorflow as tf

from tfdist._support.authors import Author, is_of_keras, made_in
from tfdist.synchronous.reader.indivisible import remedies
from tfdist.synchronous.reader.reduction import CONSTANTS, REFUSED, WEIGHED, Reduction
from tfdist.synchronous.replica.collectives import (
    exchanged,
    of_last_replica,
    sum_tensors,
)
from tfdist.synchronous.replica.step import ReplicaStep
from tfdist.synchronous.replica.whole_batch import part_of
from tfdist.variables.increment import NotAdditiveError


def settle_written(step: ReplicaStep) -> None:
    """Sets each variable that a step has written to one value on every replica.

    Replicas write different values: in batch normalization, for example, each computes
    the statistics of its own examples. A float variable becomes what it would be for all
    examples of the step if it is a sum of means and sums, else, as in Keras's own layers,
    the mean of the replicas' values. Any other variable takes the value of the last
    replica that has examples.
    """
    if not step.written or step.is_rehearsal:
        return
    # All variables in one exchange at the end of the step, and not one per assignment:
    # a model may have dozens of batch normalizations.
    parts = []
    for variable, value in step.written.values():
        read = tf.convert_to_tensor(variable.value)
        if not read.dtype.is_floating:
            parts.append(of_last_replica(step, read))
        elif _is_of_this_graph(value):
            parts.append(part_of(step, value, is_weight=True))
        else:
            parts.append(step.scaled(read))
    variables = [variable for variable, _ in step.written.values()]
    with step.updating():
        for variable, total in zip(variables, sum_tensors(parts), strict=True):
            variable.assign(total)


def settled_at_once(
    step: ReplicaStep, variable: keras.Variable, value: tf.Tensor
) -> Any:
    """Returns the whole batch's value of a variable, or None for a mean over examples.

    Sums, also with means and constants, become those of the whole batch immediately, so
    that later computations of the step from the variable cover the whole batch, too.
    Means can wait for `settle_written`, and so can all if `step.is_mean`.

    Cost: one message per such variable.

    Raises:
        NotAdditiveError: If the value is no sum of sums, means and constants.
    """
    if step.known_kinds is not None or step.is_rehearsal or step.is_mean:
        return None
    kind = step.kind_of(value)
    # A mean of integers is no integer that could be weighted.
    simple = WEIGHED if value.dtype.is_floating else CONSTANTS
    if kind in simple or not _is_of_this_graph(value) or is_of_keras(value.op):
        return None
    if kind in REFUSED or kind is Reduction.ROWS or kind in WEIGHED:
        # What a function was given is not known in its own graph.
        step.check_can_exchange()
        raise NotAdditiveError(
            f"{variable.path} must be set to a sum or a mean over examples, on which replicas "
            "agree; received another value of each replica's part of the batch"
            f"{made_in(value.op, Author.PROGRAM, Author.PACKAGE)}: it holds examples, or is a "
            f"maximum or a ratio. {remedies()}"
        )
    return exchanged(step, [part_of(step, value)])[0]


def _is_of_this_graph(value: tf.Tensor) -> bool:
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and getattr(value, "graph", None) is graph
