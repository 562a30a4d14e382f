"""Choice of the strategy that a cluster and devices call for."""

import os
from typing import Any

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist.parameter_server.strategy import ParameterServerStrategy
from tfdist.synchronous.multi_worker import MultiWorkerMirroredStrategy

_CLASSES = {
    each.__name__: each
    for each in (
        ParameterServerStrategy,
        MultiWorkerMirroredStrategy,
        tf.distribute.MirroredStrategy,
    )
}


def strategy_for(cluster: tf_config.Cluster | None, num_gpus: int) -> str | None:
    """Returns the name of a strategy, or None for TensorFlow's default one.

    Args:
        cluster: The cluster of TF_CONFIG; None without it.
        num_gpus: The number of GPUs of this process.
    """
    if cluster is None:
        return "MirroredStrategy" if num_gpus > 1 else None
    if cluster.has_parameter_servers:
        return "ParameterServerStrategy"
    # Also with one worker: it keeps the launcher's checkpoints, and any batch is exact.
    return "MultiWorkerMirroredStrategy"


def strategy() -> tf.distribute.Strategy:
    """Returns the strategy that TF_CONFIG and the GPUs of this process call for.

    `ParameterServerStrategy` if the cluster has a ps, and `MultiWorkerMirroredStrategy` for
    any other cluster. Without TF_CONFIG, `tf.distribute.MirroredStrategy` for several GPUs,
    and otherwise TensorFlow's default strategy, that of `tf.distribute.get_strategy()`. All
    have `is_chief` and `barrier()`. Settings come from the launcher's flags; for others,
    construct the strategy by its name.

    Raises:
        tf_config.ClusterError: If TF_CONFIG is not valid, or this task does not run the
            script.
    """
    cluster = None
    if os.environ.get(contract.TF_CONFIG):
        cluster = tf_config.TFConfig.from_environment().cluster
    # A cluster has to be joined before devices are listed.
    num_gpus = 0 if cluster else len(tf.config.list_logical_devices("GPU"))
    name = strategy_for(cluster, num_gpus)
    made: Any = _CLASSES[name]() if name else tf.distribute.get_strategy()
    if not hasattr(made, "barrier"):
        # TensorFlow's own lack these, which one script uses in every cluster.
        vars(made).update(is_chief=True, barrier=lambda: None)
    return made
