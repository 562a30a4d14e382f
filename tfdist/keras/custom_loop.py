"""Errors for custom training loops that compute in the wrong place."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.keras.driver import driver_of

_IN_RUN = "Put the step into a function that is called by strategy.run(step, args=...)"


def outside_run_error(what: str, strategy: tf.distribute.Strategy) -> RuntimeError:
    """Returns the error for what was done, and is allowed only under `strategy.run`."""
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


def check_optimizer_is_on_replica(strategy: tf.distribute.Strategy) -> None:
    """Checks that an optimizer is applied on a replica of its strategy."""
    elsewhere = tf.distribute.get_strategy() is not strategy
    if elsewhere or tf.distribute.in_cross_replica_context():
        raise outside_run_error("an optimizer was applied", strategy)


def check_gradient_is_on_replica(sources: list[Any]) -> None:
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
        raise outside_run_error("a gradient was computed", strategy)
