"""The `RunConfig` of `tf.estimator`, which also describes synchronous workers.

Import this module only after `_tf.load`: its base class is one that `load` loads.
"""

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

import tf_config
from tfdist.estimator import _tf
from tfdist.estimator.clusters import StrategyKind, kind_of
from tfdist.estimator.environment import read_tf_config

_Base: Any = _tf.module("run_config").RunConfig


class _SynchronousTask(SimpleNamespace):
    """A worker's view of its cluster, with the attribute names of `RunConfig`."""

    def __init__(self, config: tf_config.TFConfig) -> None:
        cluster, task = config.cluster, config.task
        trainers = len(cluster.chief) + len(cluster.worker)
        super().__init__(
            service=None,
            # Without a target, `predict` and `evaluate` run in this process, as they
            # should: the other workers may have exited.
            master="",
            evaluation_master="",
            num_ps_replicas=0,
            cluster_spec=tf.train.ClusterSpec(cluster.cluster_spec()),
            task_type=task.job,
            task_id=task.index,
            is_chief=task == tf_config.Task("chief" if cluster.chief else "worker", 0),
            num_worker_replicas=trainers,
            global_id_in_cluster=[*cluster.tasks()].index(task),
        )


def _of_cluster(name: str, doc: str) -> property:
    def get(config: "RunConfig") -> Any:
        found = config.task
        return getattr(super(RunConfig, config) if found is None else found, name)

    return property(get, doc=doc)


class RunConfig(_Base):
    """Configures an Estimator: its directory, its checkpoints, and its cluster.

    The arguments are those of `tf.estimator.RunConfig`. tensorflow-estimator requires a
    chief in every cluster. Synchronous workers may have none: `worker:0` is then the
    chief, as in `tf.distribute.MultiWorkerMirroredStrategy`.

    Attributes:
        task: The source of the properties of the cluster; None if it is the base class,
            which happens only without a strategy.
    """

    task: Any = None

    def read_cluster(self) -> None:
        """Reads TF_CONFIG; called for a config with a strategy."""
        found = read_tf_config()
        is_synchronous = kind_of(self.train_distribute) is StrategyKind.SYNCHRONOUS
        if found is not None and found.task.job != "evaluator" and is_synchronous:
            self.task = _SynchronousTask(found)
        else:
            # The base class reads TF_CONFIG only in a config without a strategy.
            self.task = _Base()

    @property
    def is_synchronous(self) -> bool:
        """True if this task trains in unison with other workers."""
        return isinstance(self.task, _SynchronousTask)

    @property
    def _distribute_coordinator_mode(self) -> str | None:
        # Makes `Estimator.train` call `roles.estimator_train`.
        return "independent_worker" if self.is_synchronous else None

    @property
    def session_config(self) -> tf.compat.v1.ConfigProto | None:
        """The options of sessions; those of the cluster unless given."""
        own = super().session_config
        return own if own is not None else getattr(self.task, "session_config", None)

    service = _of_cluster("service", "What TF_CONFIG says about the platform.")
    cluster_spec = _of_cluster("cluster_spec", "The tasks that train.")
    task_type = _of_cluster("task_type", "The job of this task.")
    task_id = _of_cluster("task_id", "The index of this task in its job.")
    is_chief = _of_cluster("is_chief", "Whether this task writes the checkpoints.")
    master = _of_cluster("master", "The target of this task's training session.")
    evaluation_master = _of_cluster(
        "evaluation_master", "The target of this task's evaluation session."
    )
    num_ps_replicas = _of_cluster("num_ps_replicas", "The number of ps tasks.")
    num_worker_replicas = _of_cluster(
        "num_worker_replicas", "The number of tasks that compute gradients."
    )
    global_id_in_cluster = _of_cluster(
        "global_id_in_cluster", "The index of this task; None for an evaluator."
    )
