"""What to say of a training loop of one's own that computes in the wrong place."""

import tensorflow as tf

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
