"""This process's membership of a cluster: which task it is, and that it joins once."""

import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf_config
from tf_config import contract


def check_eager(strategy: str) -> None:
    """Checks that this program is one of TensorFlow 2, which Keras trains in.

    Args:
        strategy: The class that is being constructed.

    Raises:
        RuntimeError: In graph mode, in a `tf.Graph`, or in a `tf.function`.
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"tfdist.{strategy} trains in eager mode, and this is graph mode: after "
            "tf.compat.v1.disable_eager_execution(), within tf.Graph().as_default(), or "
            "in a tf.function. Construct it outside of them, before anything else. A "
            "program in TensorFlow 1 style trains by tfdist.estimator, or by "
            "tf.compat.v1.train as in docs/low-level.md"
        )


def config_of(cluster: tf_config.TFConfig | None, launch: str) -> tf_config.TFConfig:
    """Returns the cluster and this process's task in it.

    Args:
        cluster: What the user gave; None for the environment variable TF_CONFIG.
        launch: The flags of `python -m launch.local` that start such a cluster.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG.
        TypeError: If `cluster` is something else.
    """
    if cluster is None and not os.environ.get(contract.TF_CONFIG):
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
    return Resolver(
        tf.train.ClusterSpec(config.cluster.cluster_spec()),
        task_type=config.task.job,
        task_id=config.task.index,
        rpc_layer="grpc",
    )


class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
    """A cluster and a task, and the accelerators that the task has."""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Counts a task's devices that are no CPUs: `{"GPU": 2}`; {} if it has none.

        Args:
            task_type: Its job; this process's unless given.
            task_id: Its index; this process's unless given.
            config_proto: As TensorFlow's resolvers take it.
        """
        # The class between, which is told its cluster, wants to be told these too.
        return dict(
            tf.distribute.cluster_resolver.ClusterResolver.num_accelerators(
                self,
                self.task_type if task_type is None else task_type,
                self.task_id if task_id is None else task_id,
                config_proto,
            )
        )


class JoinsOnce:
    """A strategy's part in a membership: copies of it are the strategy itself.

    A process joins a cluster once, so that it can have no second one.
    """

    def __copy__(self) -> "JoinsOnce":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "JoinsOnce":
        return self


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
