"""Patches of the functions that a step calls, which ask the current `Computation`.

Without one, a patched function behaves as before; but in a training loop of one's own it
refuses to compute in the wrong place.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.patching import patch
from tfdist._support.types import Nest
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.keras import rehearsal
from tfdist.keras.computation import current_computation
from tfdist.keras.driver import driver_of
from tfdist.variables import keras_variable

_IN_RUN = "Put the step into a function that is called by strategy.run(step, args=...)"


def install() -> None:
    """Patches the functions that a step calls to ask the current computation."""
    patch(tf.GradientTape, "gradient", _gradient_by_computation)
    patch(tf.GradientTape, "watch", _watching_shards)
    for owner in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        patch(owner, "apply", _applied_by_computation)
    # Only newer versions of Keras have it.
    if hasattr(keras.optimizers, "MultiOptimizer"):
        patch(keras.optimizers.MultiOptimizer, "apply", _applied_at_once)
    optimizer: Any = keras.optimizers.Optimizer
    patch(optimizer, "_all_reduce_sum_gradients", _reduced_by_computation)
    patch(keras.random.SeedGenerator, "next", _drawn_by_computation)
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        patch(_tf.keras_loss, name, _unless_computing)
    patch(_tf.keras_loss, "apply_mask", _masked_by_computation)
    # TensorFlow's two functions that divide by the number of replicas.
    patch(tf.nn, "compute_average_loss", _averaged_on_replica)
    patch(tf.nn, "scale_regularization_loss", _regularized_on_replica)
    patch(_tf.CompileLoss, "build", _building_compiled_losses)
    patch(_tf.MetricsList, "update_state", _updated_by_computation)


def _gradient_by_computation(tape_gradient: Callable[..., Any]) -> Any:
    def gradient(
        self: tf.GradientTape,
        target: Nest,
        sources: Nest,
        output_gradients: Nest = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Nest:
        bound = functools.partial(tape_gradient, self)
        of_shards = functools.partial(keras_variable.gradient_by_shards, bound)
        given = target, sources, output_gradients, unconnected_gradients
        computation = current_computation()
        if computation is None:
            _check_gradient_is_on_replica(tf.nest.flatten(sources))
            return of_shards(*given)
        return computation.gradient(of_shards, *given)

    return gradient


def _watching_shards(tape_watch: Callable[..., None]) -> Any:
    def watch(self: Any, tensor: tf.Tensor) -> None:
        tape_watch(self, keras_variable.with_shards(tensor))

    return watch


def _applied_by_computation(keras_apply: Callable[..., Any]) -> Any:
    def apply_or_note(
        optimizer: keras.Optimizer, grads: Nest, variables: Nest = None
    ) -> object:
        noted = rehearsal.optimizers_to_apply()
        if noted is None:
            # Keras applies the optimizer in any context, and updates of a step that
            # runs on the chief would look like training. So the place is checked here.
            strategy = optimizer._distribution_strategy
            if strategy is MEMBERSHIP.strategy:
                _check_optimizer_is_on_replica(strategy)
            return keras_apply(optimizer, grads, variables)
        # In a rehearsal the variables may not exist yet. The optimizer is built
        # afterwards. Without variables, it is built already: Keras requires
        # that.
        if variables is not None:
            noted.append((optimizer, list(variables)))
        return None

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        computation = current_computation()
        if computation is None:
            return apply_or_note(self, grads, trainable_variables)
        return computation.apply(apply_or_note, self, grads, trainable_variables)

    return apply


def _applied_at_once(keras_apply: Callable[..., Any]) -> Any:
    """Returns the `apply` of an optimizer that has others apply their parts."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        computation = current_computation()
        if computation is not None and computation.applies_at_once:
            return computation.apply(keras_apply, self, grads, trainable_variables)
        return keras_apply(self, grads, trainable_variables)

    return apply


def _reduced_by_computation(keras_reduce: Callable[..., Any]) -> Any:
    def reduce(self: Any, grads_and_vars: Any) -> Any:
        # The gradients from a computation's tape are sums over all replicas already.
        if (computation := current_computation()) is not None:
            return computation.to_apply(grads_and_vars)
        return keras_reduce(self, grads_and_vars)

    return reduce


def _drawn_by_computation(keras_next: Callable[..., Any]) -> Any:
    def next_seed(self: Any, ordered: bool = True) -> Any:
        computation = current_computation()
        if computation is None:
            return keras_next(self, ordered)
        return computation.next_seed(functools.partial(keras_next, self, ordered))

    return next_seed


def _masked_by_computation(keras_mask: Callable[..., Any]) -> Any:
    def apply_mask(
        sample_weight: Nest, mask: tf.Tensor | None, dtype: str, reduction: str | None
    ) -> Nest:
        computation = current_computation()
        if computation is None:
            return keras_mask(sample_weight, mask, dtype, reduction)
        weigh = functools.partial(keras_mask, sample_weight, mask, dtype)
        return computation.mask_weights(weigh, mask, reduction)

    return apply_mask


def _averaged_on_replica(average: Callable[..., Any]) -> Any:
    def compute_average_loss(
        per_example_loss: tf.Tensor,
        sample_weight: Nest = None,
        global_batch_size: tf.Tensor | int | None = None,
    ) -> tf.Tensor:
        if global_batch_size is None and current_computation() is not None:
            # The mean over this replica's examples; its weight is applied later.
            per_example_loss = tf.convert_to_tensor(per_example_loss)
            # TensorFlow refuses a scalar in its own words.
            if per_example_loss.shape.rank != 0:
                global_batch_size = tf.shape(per_example_loss)[0]
        return average(per_example_loss, sample_weight, global_batch_size)

    return compute_average_loss


def _regularized_on_replica(scale: Callable[[Any], Any]) -> Any:
    def scale_regularization_loss(regularization_loss: Any) -> Any:
        if current_computation() is None:
            return scale(regularization_loss)
        # Not divided, since a computation weights the gradients of each replica.
        return tf.reduce_sum(regularization_loss)

    return scale_regularization_loss


def _unless_computing(
    scale: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
    # A computation weights gradients by the number of examples of each replica. Keras
    # would also divide the losses by the number of replicas.
    def scaled(value: Any) -> Any:
        return scale(value) if current_computation() is None else value

    return scaled


def _building_compiled_losses(keras_build: Callable[..., None]) -> Any:
    def build(self: Any, y_true: Nest, y_pred: Nest) -> None:
        check_loss_weights(self._user_loss_weights)
        keras_build(self, y_true, y_pred)
        # Keras makes this list here, from the names and structures that a user gave.
        self._flat_losses = [
            each._replace(loss=functools.partial(_compiled_loss, each.loss))
            for each in self._flat_losses
        ]

    return build


def check_loss_weights(weights: Nest) -> None:
    """Checks that the weights of losses are no names, such as those of metrics.

    Raises:
        ValueError: If one is.
    """
    if any(isinstance(each, str) for each in keras.tree.flatten(weights)):
        raise ValueError(
            f"loss_weights of compile must be numbers; received {weights!r}. The third "
            "positional argument of compile is loss_weights: pass metrics by name, as in "
            f"compile(optimizer, loss, metrics={weights!r})"
        )


def _compiled_loss(
    loss: Nest, y_true: Nest, y_pred: Nest, sample_weight: Nest = None
) -> Nest:
    computation = current_computation()
    if computation is None:
        return loss(y_true, y_pred, sample_weight)
    return computation.loss(loss, y_true, y_pred, sample_weight)


def _updated_by_computation(keras_update: Callable[..., None]) -> Any:
    def update_state(
        self: keras.Layer, y_true: Nest, y_pred: Nest, sample_weight: Nest = None
    ) -> None:
        computation = current_computation()
        if computation is None:
            keras_update(self, y_true, y_pred, sample_weight)
            return
        for each in self.metrics:
            computation.update_metric(each, y_true, y_pred, sample_weight)

    return update_state


def _outside_run_error(what: str, strategy: tf.distribute.Strategy) -> RuntimeError:
    """Returns the error for a call that is allowed only under `strategy.run`."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        way_out = (
            f"{_IN_RUN}, and schedule that call by a "
            "tf.distribute.coordinator.ClusterCoordinator. Here it would run on the "
            "chief, and no worker would take part"
        )
    else:
        way_out = (
            f"{_IN_RUN} for each batch of strategy.experimental_distribute_dataset("
            "dataset), in a tf.function"
        )
    return RuntimeError(f"{what} outside of strategy.run. {way_out}")


def _check_optimizer_is_on_replica(strategy: tf.distribute.Strategy) -> None:
    """Checks that an optimizer is applied on a replica of its strategy."""
    elsewhere = tf.distribute.get_strategy() is not strategy
    if elsewhere or tf.distribute.in_cross_replica_context():
        raise _outside_run_error("an optimizer was applied", strategy)


def _check_gradient_is_on_replica(sources: list[tf.Tensor | tf.Variable]) -> None:
    """Checks that a gradient is computed on a replica.

    Raises:
        RuntimeError: If it is computed outside a replica, in the scope of a strategy
            whose replicas compute gradients in unison.
    """
    # Gradients with respect to plain tensors, as for saliency maps, involve no replica.
    strategy = tf.distribute.get_strategy()
    driver = driver_of(strategy)
    if (
        driver is not None
        and driver.in_unison
        and tf.distribute.in_cross_replica_context()
        and any(isinstance(each, keras.Variable | tf.Variable) for each in sources)
    ):
        raise _outside_run_error("a gradient was computed", strategy)
