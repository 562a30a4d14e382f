"""What to say of a training loop of one's own that computes in the wrong place."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.keras.driver import driver_of

_IN_RUN = "Put the step into a function that is called by strategy.run(step, args=...)"


def outside_of_run(what: str, strategy: tf.distribute.Strategy) -> RuntimeError:
    """Returns the error of what only a step under `strategy.run` may do.

    Args:
        what: What was done, in the past tense.
        strategy: Whose variables it was done to.
    """
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        way_out = (
            f"{_IN_RUN}, and schedule that call by a "
            "tf.distribute.coordinator.ClusterCoordinator: here it would run on the "
            "chief, and no worker would take part"
        )
    else:
        way_out = (
            f"{_IN_RUN} for each batch of strategy.experimental_distribute_dataset("
            "dataset), in a tf.function"
        )
    return RuntimeError(f"{what} outside of strategy.run. {way_out}")


def check_optimizer_is_on_replica(strategy: tf.distribute.Strategy) -> None:
    """Checks where an optimizer is applied.

    Args:
        strategy: In whose scope it was created.

    Raises:
        RuntimeError: If that is not on a replica of the strategy.
    """
    elsewhere = tf.distribute.get_strategy() is not strategy
    if elsewhere or tf.distribute.in_cross_replica_context():
        raise outside_of_run("an optimizer was applied", strategy)


def check_gradient_is_on_replica(sources: list[Any]) -> None:
    """Checks where a gradient is computed.

    Args:
        sources: What it is computed with respect to.

    Raises:
        RuntimeError: If that is outside a replica, in the scope of a strategy whose
            replicas compute gradients in unison.
    """
    strategy = tf.distribute.get_strategy()
    driver = driver_of(strategy)
    if (
        driver is not None
        and driver.in_unison
        and tf.distribute.in_cross_replica_context()
        and any(isinstance(each, keras.Variable | tf.Variable) for each in sources)
    ):
        raise outside_of_run("a gradient was computed", strategy)
