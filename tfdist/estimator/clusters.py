"""Checks which cluster fits which strategy, before anything starts."""

from enum import Enum

import tensorflow as tf

from tf_config import Cluster, ClusterError
from tfdist._support.errors import Error
from tfdist.parameter_server.strategy import (
    ParameterServerStrategy as KerasParameterServerStrategy,
)
from tfdist.synchronous.multi_worker import (
    MultiWorkerMirroredStrategy as KerasMultiWorkerMirroredStrategy,
)
from tfdist.synchronous.ring import RingStrategy


class StrategyKind(Enum):
    """The way in which the tasks of a cluster train one model."""

    DEVICE_SETTER = "no strategy"
    PARAMETER_SERVER = "ParameterServerStrategy"
    ONE_PROCESS = "a strategy of one process"
    SYNCHRONOUS = "MultiWorkerMirroredStrategy"


_v1 = tf.compat.v1.distribute
_KINDS = {
    StrategyKind.PARAMETER_SERVER: (_v1.experimental.ParameterServerStrategy,),
    StrategyKind.SYNCHRONOUS: (
        tf.distribute.MultiWorkerMirroredStrategy,
        _v1.experimental.MultiWorkerMirroredStrategy,
    ),
    StrategyKind.ONE_PROCESS: (
        tf.distribute.MirroredStrategy,
        tf.distribute.OneDeviceStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
        _v1.MirroredStrategy,
        _v1.OneDeviceStrategy,
        _v1.experimental.CentralStorageStrategy,
    ),
}
# Some of these are subclasses of the ones above.
_EAGER = (
    KerasParameterServerStrategy,
    KerasMultiWorkerMirroredStrategy,
    RingStrategy,
)


class StrategyError(Error, ValueError):
    """A strategy that an Estimator cannot train under."""


def kind_of(strategy: object) -> StrategyKind:
    """Returns how a strategy, or None for no strategy, trains.

    Raises:
        StrategyError: If an Estimator cannot train under it.
    """
    if strategy is None:
        return StrategyKind.DEVICE_SETTER
    for kind, classes in _KINDS.items():
        if isinstance(strategy, classes) and not isinstance(strategy, _EAGER):
            return kind
    cls = type(strategy)
    raise StrategyError(
        f"an Estimator cannot train under {cls.__module__}.{cls.__name__}, which is "
        "made for eager execution: use tfdist.estimator.ParameterServerStrategy(), "
        "tf.distribute.MultiWorkerMirroredStrategy() or "
        "tf.distribute.MirroredStrategy()"
    )


def is_synchronous(strategy: object) -> bool:
    """Returns True if workers train in unison, each with a copy of every variable."""
    return isinstance(strategy, _KINDS[StrategyKind.SYNCHRONOUS])


def check_cluster(kind: StrategyKind, cluster: Cluster) -> None:
    """Checks that a cluster has the tasks that a strategy needs."""
    trainers = len(cluster.chief) + len(cluster.worker)
    alone = trainers == 1 and not cluster.ps
    has = " and ".join(cluster.jobs())
    if kind is StrategyKind.ONE_PROCESS and not alone:
        raise ClusterError(
            f"TF_CONFIG has {has}, and the strategy of this RunConfig trains in one "
            "process: give the address of a chief only, or choose "
            "tfdist.estimator.ParameterServerStrategy() with ps tasks, or "
            "tf.distribute.MultiWorkerMirroredStrategy() without any"
        )
    if kind is StrategyKind.SYNCHRONOUS and cluster.ps:
        raise ClusterError(
            f"TF_CONFIG has {has}, and synchronous workers need no ps: remove it, or "
            "choose tfdist.estimator.ParameterServerStrategy()"
        )
    if kind is StrategyKind.PARAMETER_SERVER and not cluster.ps:
        raise ClusterError(
            f"TF_CONFIG has {has}, and no ps for the variables: add the address of "
            "one, or choose tf.distribute.MultiWorkerMirroredStrategy()"
        )
    if kind is StrategyKind.DEVICE_SETTER and not (
        cluster.ps or alone and cluster.chief
    ):
        raise ClusterError(
            f"TF_CONFIG has {has}: without a strategy, each worker would train a "
            "separate model, or wait forever. Add the address of a ps, which needs a "
            "chief, or pass RunConfig(train_distribute="
            "tf.distribute.MultiWorkerMirroredStrategy())"
        )
