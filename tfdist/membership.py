"""This process's membership of a cluster: which task it is, and that it joins once."""

import os
import weakref
from collections.abc import Callable

import tensorflow as tf

import tf_config


def config_of(cluster: tf_config.TFConfig | None, launch: str) -> tf_config.TFConfig:
    """Returns the cluster and this process's task in it.

    Args:
        cluster: What the user gave; None for the environment variable TF_CONFIG.
        launch: The flags of `python -m launch.local` that start such a cluster.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG.
        TypeError: If `cluster` is something else.
    """
    if cluster is None and not os.environ.get("TF_CONFIG"):
        raise tf_config.ClusterError(
            f"TF_CONFIG is not set: start this script with `python -m launch.local "
            f"{launch} SCRIPT` for a cluster on this machine, or with `python -m "
            "launch.task` on each host of a cluster"
        )
    if cluster is None:
        return tf_config.TFConfig.from_environment()
    if not isinstance(cluster, tf_config.TFConfig):
        raise TypeError(
            "cluster is a tf_config.TFConfig(cluster, tf_config.Task('chief', 0)): the "
            f"tf_config.Cluster, and this process's task; received {cluster!r}"
        )
    return cluster


def resolver_of(
    config: tf_config.TFConfig,
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns what TensorFlow reads a cluster and a task from."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.cluster_spec()),
        task_type=config.task.job,
        task_id=config.task.index,
        rpc_layer="grpc",
    )


class Membership:
    """Whether this process has joined a cluster. TensorFlow lets it join one, once."""

    def __init__(self) -> None:
        # A process that was forked from one that had joined has not.
        self._joined: tuple[int, str] | None = None
        self._strategy: Callable[[], tf.distribute.Strategy | None] = lambda: None

    @property
    def strategy(self) -> tf.distribute.Strategy | None:
        """The strategy that has connected this process, while it is in use."""
        return self._strategy()

    def check_none(self) -> None:
        """Raises if the process has joined already.

        Raises:
            RuntimeError: If it has; names the strategy that did.
        """
        if self._joined and self._joined[0] == os.getpid():
            raise RuntimeError(
                f"this process has a {self._joined[1]} already, and TensorFlow connects "
                "a process to one cluster, once. Keep that strategy and use it again, "
                "or start a new process"
            )

    def joined(self, strategy: tf.distribute.Strategy) -> None:
        """Notes that a strategy has connected this process."""
        self._joined = (os.getpid(), type(strategy).__name__)
        self._strategy = weakref.ref(strategy)


MEMBERSHIP = Membership()
"""Of this process."""
