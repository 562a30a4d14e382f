"""Where a step of Keras computes with one replica what takes all of them.

Each replaced function behaves as before unless a step of ours is being traced: see
`multi_worker_hooks`, which installs them.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.multi_worker_exchange import reduce_gradients
from tfdist.keras.multi_worker_replica import current_step
from tfdist.multi_worker.synchronous import SynchronousStrategy


def hook_computation() -> None:
    """Replaces what Keras does with gradients, variables, seeds and losses."""
    _hook_optimizers()
    _hook_variables()
    _hook_seeds()
    _weigh_by_examples("scale_loss_for_distribution", is_scaled=True)
    _weigh_by_examples("unscale_loss_for_distribution", is_scaled=False)


def _hook_optimizers() -> None:
    _reduce_before(keras.optimizers.Optimizer)
    _reduce_before(keras.optimizers.LossScaleOptimizer)
    owner = keras.optimizers.Optimizer
    keras_reduce = owner._all_reduce_sum_gradients

    @functools.wraps(keras_reduce)
    def reduce(self: Any, grads_and_vars: Any) -> Any:
        if current_step() is not None:
            return grads_and_vars
        return keras_reduce(self, grads_and_vars)

    owner._all_reduce_sum_gradients = reduce


def _reduce_before(owner: Any) -> None:
    """Adds up the gradients before anything is done with them.

    Keras clips a replica's gradients, accumulates them and looks for infinities in
    them first, and adds up what results.
    """
    keras_apply = owner.apply

    @functools.wraps(keras_apply)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        step = current_step()
        if step is None or step.is_updating:
            return keras_apply(self, grads, trainable_variables)
        options = tf.distribute.get_strategy().extended.communication_options
        counted = [None if each is None else step.counted(each) for each in grads]
        summed = reduce_gradients(counted, options)
        with step.updating():
            return keras_apply(self, summed, trainable_variables)

    owner.apply = apply


def _hook_variables() -> None:
    owner = _tf.KerasVariable
    keras_assign, keras_map = owner._direct_assign, owner._map_aggregation

    @functools.wraps(keras_assign)
    def direct_assign(self: Any, value: Any) -> None:
        keras_assign(self, value)
        if step := current_step():
            step.wrote(self)

    # Of an optimizer, and the same on every replica. To have TensorFlow see to that,
    # the replicas would have to meet at each of them.
    @functools.wraps(keras_map)
    def map_aggregation(self: Any, aggregation: str) -> Any:
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, SynchronousStrategy):
            aggregation = "none" if aggregation.startswith("only") else aggregation
        return keras_map(self, aggregation)

    owner._direct_assign, owner._map_aggregation = direct_assign, map_aggregation


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


def _weigh_by_examples(name: str, is_scaled: bool) -> None:
    """Weighs a replica's loss by its part of the examples, not of the replicas."""
    module = _tf.keras_loss
    keras_function = getattr(module, name)

    @functools.wraps(keras_function)
    def function(value: Any) -> Any:
        step = current_step()
        if step is None:
            return keras_function(value)
        value = tf.convert_to_tensor(value)
        return step.scaled(value) if is_scaled else step.unscaled(value)

    setattr(module, name, function)
