"""Queries of the strategies' exchanges about the step that this thread traces."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.keras.computation import current_computation
from tfdist.keras.seeds import with_this_generator
from tfdist.synchronous.reader.reduction import ADDED_UP, CONSTANTS
from tfdist.synchronous.replica.computation import WholeBatchComputation
from tfdist.synchronous.replica.step import ReplicaStep
from tfdist.variables.increment import NotAdditiveError


def _step() -> ReplicaStep | None:
    computation = current_computation()
    is_ours = isinstance(computation, WholeBatchComputation)
    return computation.step if is_ours else None


def all_reduced(
    reduce_op: tf.distribute.ReduceOp, value: Any, reduce: Callable[[Any, Any], Any]
) -> Any:
    """Returns the result of a reduction that is not tfdist's own.

    In a step, a replica without examples computes on a row that does not count, and a mean
    is one over examples: each replica's is weighted by its share.

    Args:
        reduce_op: A `tf.distribute.ReduceOp`.
        value: What this thread's replica reduces: a tensor, or a structure of tensors.
        reduce: Reduces, given an operation and a value.
    """
    step = _step()
    if step is None:
        return reduce(reduce_op, value)
    with exchanging():
        total = reduce(*_part_to_reduce(step, reduce_op, value))
    step.is_same(total)
    if step.known_kinds is None:
        pairs = zip(tf.nest.flatten(value), tf.nest.flatten(total), strict=True)
        step.reduced |= {
            result.ref(): (reduce_op, step.reader.kind_of(each))
            for each, result in pairs
            if tf.is_tensor(each) and tf.is_tensor(result)
        }
    return total


def _part_to_reduce(
    step: ReplicaStep, reduce_op: tf.distribute.ReduceOp, value: Any
) -> tuple[Any, Any]:
    """Returns the operation and the value to reduce in place of those given."""
    tensors = tf.nest.flatten(value)
    if not all(tf.is_tensor(each) for each in tensors):
        return reduce_op, value
    if reduce_op == tf.distribute.ReduceOp.SUM:
        return reduce_op, step.counted(value)
    if not all(each.dtype.is_floating for each in tensors):
        return reduce_op, value
    scaled = tf.nest.map_structure(step.scaled, step.counted(value))
    return tf.distribute.ReduceOp.SUM, scaled


def part_to_write(
    variable: keras.Variable, value: tf.Tensor, is_increment: bool
) -> Any:
    """Returns the value that a copy gets of a variable which a read combines.

    All copies together then hold the sum over the examples. A value that is the same on
    every replica counts on each, as TensorFlow documents.

    Raises:
        NotAdditiveError: If it is computed from examples and is no sum over them.
    """
    step = _step()
    if step is None:
        return value
    value = tf.convert_to_tensor(value, variable.dtype)
    kind = step.kind_of(value)
    if kind in CONSTANTS:
        return value
    is_sum = variable.aggregation == tf.VariableAggregation.SUM
    if is_sum and is_increment and (kind in ADDED_UP or step.is_mean):
        return step.counted(value)
    if step.is_mean and variable.aggregation == tf.VariableAggregation.MEAN:
        return tf.math.multiply_no_nan(value, tf.cast(step.weight, value.dtype))
    step.check_can_exchange()
    raise NotAdditiveError(
        "a tf.Variable with synchronization=ON_READ is set to what each replica computes "
        "from its own part of the batch. With aggregation=SUM, use assign_add with a sum "
        "over examples. For anything else create it with add_weight of a layer or metric"
    )


def check_not_within(what: str, instead: str) -> None:
    """Checks that this thread traces no branch and no loop of a step: see `ReplicaStep`."""
    if (step := _step()) is not None:
        step.check_not_within(what, instead)


def note_equal(values: Nest) -> None:
    """Notes what all replicas have alike, if this thread is in a step."""
    if (step := _step()) is not None:
        step.is_same(values)


def note_shapes(values: Sequence[Nest]) -> None:
    """Notes what a step of this thread exchanges, if it is in a step."""
    if (step := _step()) is not None:
        step.note_shapes(values)


@contextlib.contextmanager
def exchanging() -> Iterator[None]:
    """A context in which this thread's replica exchanges numbers with the others.

    It keeps the replica's seed, and what its layers have passed to `add_loss`: a layer has
    one list of losses, and each call of a model clears it. The replicas that one process
    traces take turns at every exchange.

    Raises:
        NestedFunctionError: In a function that the step calls.
    """
    step = _step()
    if step is None or step.model is None:
        yield
        return
    step.check_can_exchange()
    with _tf.keeping_losses(step.model):
        yield
    step.own_seed.draw_again()


def has_reduced_gradients() -> bool:
    """Returns True if this thread traces a step in which replicas add up gradients.

    Keras's optimizers ask for a merge call after that. The rest is equal on every
    replica: no merge call is needed, nor is one possible within a condition, such as
    that of accumulated gradients.
    """
    step = _step()
    return step is not None and not step.is_rehearsal


class TracesSteps(tf.distribute.StrategyExtended):
    """Base of the `extended` of a strategy whose replicas trace steps of their own."""

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        reduce = super()._replica_ctx_all_reduce
        return all_reduced(reduce_op, value, lambda op, part: reduce(op, part, options))

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        # Replicas have threads of their own, and Keras has a seed generator per thread.
        return super()._call_for_each_replica(with_this_generator(fn), args, kwargs)

    def _use_merge_call(self) -> bool:
        return not has_reduced_gradients() and super()._use_merge_call()
