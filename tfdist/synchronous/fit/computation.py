"""Where a step of Keras computes with one replica what takes all of them.

Each replaced function behaves as before unless a step of ours is being traced: see
`multi_worker_hooks`, which installs them.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.liveness.step_error import is_by_user
from tfdist.synchronous.fit.exchange import of_last_replica
from tfdist.synchronous.fit.gradients import hook_gradients
from tfdist.synchronous.fit.kind import ADDED_UP, CONSTANTS, INDIVISIBLE, Kind
from tfdist.synchronous.fit.loss_kind import IndivisibleLossError
from tfdist.synchronous.fit.replica import ReplicaStep, current_step
from tfdist.synchronous.fit.whole_batch import exchanged, part_of, settled_at_once
from tfdist.synchronous.strategy import SynchronousStrategy
from tfdist.variables.increment import NotAdditiveError


def hook_computation() -> None:
    """Replaces what Keras does with losses, gradients, variables and seeds."""
    hook_gradients()
    _hook_optimizers()
    _hook_variables()
    _hook_seeds()
    _hook_losses()


def _hook_optimizers() -> None:
    _apply_as_it_is(keras.optimizers.Optimizer)
    _apply_as_it_is(keras.optimizers.LossScaleOptimizer)
    owner = keras.optimizers.Optimizer
    keras_reduce = owner._all_reduce_sum_gradients

    @functools.wraps(keras_reduce)
    def reduce(self: Any, grads_and_vars: Any) -> Any:
        if current_step() is not None:
            return grads_and_vars
        return keras_reduce(self, grads_and_vars)

    owner._all_reduce_sum_gradients = reduce


def _apply_as_it_is(owner: Any) -> None:
    """Applies gradients that have been added up already."""
    keras_apply = owner.apply

    @functools.wraps(keras_apply)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        step = current_step()
        if step is None or step.is_updating:
            return keras_apply(self, grads, trainable_variables)
        variables = trainable_variables or self._trainable_variables
        grads = [
            _checked(step, each, variable)
            for each, variable in zip(grads, variables, strict=True)
        ]
        with step.updating():
            return keras_apply(self, grads, trainable_variables)

    owner.apply = apply


def _checked(step: ReplicaStep, gradient: Any, variable: Any) -> Any:
    """The gradient, which has to be the same on every replica.

    Raises:
        IndivisibleLossError: If it was computed from this replica's examples otherwise
            than by a tape.
    """
    if gradient is None:
        return None
    leaves = tf.nest.flatten(gradient, expand_composites=True)
    kinds = {step.kind_of(tf.convert_to_tensor(each)) for each in leaves}
    if kinds <= {Kind.SAME}:
        return gradient
    if kinds <= CONSTANTS:
        # Noise: all replicas take that of one of them.
        dense = tf.convert_to_tensor(gradient)
        return exchanged(step, [of_last_replica(step, dense)])[0]
    raise IndivisibleLossError(
        f"{variable.path} was given a gradient that depends on one replica's part of "
        "the batch. Compute gradients by tf.GradientTape.gradient, which adds up those "
        "of all replicas; tf.gradients and jacobians do not"
    )


def _hook_variables() -> None:
    owner = _tf.KerasVariable
    keras_assign, keras_map = owner._direct_assign, owner._map_aggregation
    keras_add = owner.assign_add

    @functools.wraps(keras_assign)
    def direct_assign(self: Any, value: Any) -> None:
        step = current_step()
        if step and not step.is_updating:
            value = tf.convert_to_tensor(value)
            if self.synchronization == "on_read":
                value = _state_to_sum(step, self, value)
            elif (settled := settled_at_once(step, self, value)) is not None:
                value = settled
            else:
                step.wrote(self, value)
        keras_assign(self, value)

    @functools.wraps(keras_add)
    def assign_add(self: Any, value: Any) -> Any:
        step = current_step()
        if step and not step.is_updating and self.synchronization == "on_read":
            value = tf.cast(tf.convert_to_tensor(value), self._dtype)
            kind = step.kind_of(value)
            if kind not in INDIVISIBLE:
                value = part_of(step, value)
            elif step.known_kinds is None and is_by_user(step.reader.origin(value).op):
                raise step.reader.error_of(value)
            with step.updating():
                return keras_add(self, value)
        return keras_add(self, value)

    # Of an optimizer, and the same on every replica. To have TensorFlow see to that,
    # the replicas would have to meet at each of them.
    @functools.wraps(keras_map)
    def map_aggregation(self: Any, aggregation: str) -> Any:
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, SynchronousStrategy):
            aggregation = "none" if aggregation.startswith("only") else aggregation
        return keras_map(self, aggregation)

    owner._direct_assign, owner._map_aggregation = direct_assign, map_aggregation
    owner.assign_add = assign_add
    _hook_restoring(owner)
    for name, number in (("__int__", int), ("__float__", float)):
        setattr(owner, name, _of_a_copy(getattr(owner, name), number))


def _hook_restoring(owner: Any) -> None:
    keras_restore = owner._restore_from_tensors

    @functools.wraps(keras_restore)
    def restore(self: Any, restored: Any) -> Any:
        # TensorFlow restores copies on several tasks in a graph, where the value has no
        # shape yet, and Keras assigns none of unknown shape.
        if isinstance(self._value, tf.distribute.DistributedValues):
            restored = {
                name: tf.ensure_shape(value, self.shape)
                for name, value in restored.items()
            }
        return keras_restore(self, restored)

    owner._restore_from_tensors = restore


def _state_to_sum(step: ReplicaStep, variable: Any, value: tf.Tensor) -> tf.Tensor:
    """What to set a replica's state of a metric to, so that the sum is the batch's.

    Raises:
        NotAdditiveError: If no sum over the replicas is.
    """
    kind = step.kind_of(value)
    if kind in INDIVISIBLE:
        raise NotAdditiveError(
            f"{variable.path} sums over the replicas, and this step sets it to a value "
            "that is no sum over examples (a maximum, say). Write what the step adds, "
            "as variable.assign_add(...), or compute the value from such sums"
        )
    # Beside constants, which reset it: what is neither is a sum of the state and a mean.
    return value if kind in ADDED_UP | CONSTANTS else part_of(step, value)


def _of_a_copy(
    convert: Callable[[Any], Any], number: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Converts a scalar variable, which TensorFlow cannot if it has several copies."""

    @functools.wraps(convert)
    def method(self: Any) -> Any:
        is_mirrored = isinstance(self._value, tf.distribute.DistributedValues)
        return number(self.numpy()) if is_mirrored and not self.ndim else convert(self)

    return method


def _hook_seeds() -> None:
    owner = keras.random.SeedGenerator
    keras_next = owner.next

    @functools.wraps(keras_next)
    def next_seed(self: Any, ordered: bool = True) -> Any:
        step = current_step()
        if step is None:
            return keras_next(self, ordered)
        # The state is the same on every replica, and goes on the same. The masks of a
        # dropout shall not be the same.
        with step.updating():
            seed = keras_next(self, ordered)
        return seed + tf.cast(tf.stack([step.replica, 0]), seed.dtype)

    owner.next = next_seed


def _hook_losses() -> None:
    """Leaves a replica's losses as they are: its gradients are weighed, not they."""
    module = _tf.keras_loss
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        setattr(module, name, _as_it_is(getattr(module, name)))
    keras_mask = module.apply_mask

    @functools.wraps(keras_mask)
    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        step = current_step()
        if step is None or mask is None or reduction not in _MEANS:
            return keras_mask(sample_weight, mask, dtype, reduction)
        # A mean over what is not masked, of all replicas.
        weights = keras_mask(sample_weight, mask, dtype, "sum")
        mask = tf.cast(tf.convert_to_tensor(mask), dtype)
        sums = [tf.reduce_sum(tf.ones_like(mask)), tf.reduce_sum(mask)]
        size, valid = exchanged(step, [step.counted(each) for each in sums])
        return weights * tf.math.divide_no_nan(size, valid)

    module.apply_mask = apply_mask


_MEANS = ("mean", "sum_over_batch_size")


def _as_it_is(keras_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(keras_function)
    def function(value: Any) -> Any:
        return keras_function(value) if current_step() is None else value

    return function
