"""The strategies of an Estimator: graph mode, and one program for every task."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import tf_config
from tfdist.estimator import _tf
from tfdist.estimator.environment import check_no_proxy, read_tf_config
from tfdist.estimator.placing import Placing
from tfdist.placement.greedy import GreedyLoadBalancing
from tfdist.placement.placement import Placement, check_placement
from tfdist.placement.report import PlacementReport


class ParameterServerStrategy(
    tf.compat.v1.distribute.experimental.ParameterServerStrategy
):
    """Trains an Estimator on parameter servers, each worker at its own pace.

        strategy = estimator.ParameterServerStrategy()
        config = estimator.RunConfig(train_distribute=strategy)

    It is TensorFlow's own `tf.compat.v1.distribute.experimental` strategy, but for
    where variables live. That one deals them out in turn, whatever their size.
    Without a TF_CONFIG, everything lives and runs in this process.

    Args:
        placement: Which ps a variable lives on; `GreedyLoadBalancing()` unless given.
            Every task decides for itself, and must come to the same answers: a
            placement of your own must not draw lots.
        partitioner: Splits what the model makes by `tf.compat.v1.get_variable`, as a
            partitioner of `tf.compat.v1.variable_scope` does: TF1's own, or one of
            tfdist's.

    Raises:
        tf_config.ClusterError: If TF_CONFIG is not valid, or its cluster has no ps.
        TypeError: If `placement` has no method `place`.
    """

    def __init__(
        self,
        placement: Placement | None = None,
        partitioner: Callable[..., Any] | None = None,
    ) -> None:
        placement = GreedyLoadBalancing() if placement is None else placement
        check_placement(placement)
        self._placing = Placing(placement)
        self._partitioner = partitioner
        # Not of the class between: it would make the extended part that TensorFlow has.
        tf.compat.v1.distribute.Strategy.__init__(
            self, _Extended(self, _resolver(), self._placing)
        )

    @contextmanager
    def scope(self) -> Iterator[Any]:
        """As in TensorFlow; variables are split by the partitioner in it."""
        with super().scope() as strategy:
            if self._partitioner is None:
                yield strategy
                return
            variable_scope = tf.compat.v1.get_variable_scope()
            with tf.compat.v1.variable_scope(
                variable_scope, partitioner=self._partitioner
            ):
                yield strategy

    def placement_report(self) -> PlacementReport:
        """Says where every variable lives of the model that was built last."""
        return PlacementReport(self.extended.num_ps, self._placing.variables)


def MultiWorkerMirroredStrategy(  # noqa: N802  It is called as the class is.
    **options: Any,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a `tf.distribute.MultiWorkerMirroredStrategy`, TensorFlow's own.

    An evaluator that is not in the cluster of its TF_CONFIG, as it need not be, can
    make this one, too.

    Args:
        **options: Such as `communication_options`.

    Raises:
        tf_config.ClusterError: If TF_CONFIG is not valid, or a proxy stands between.
    """
    config = read_tf_config()
    if config is not None and config.task.job == "evaluator":
        options["cluster_resolver"] = _no_cluster()
    elif config is not None:
        check_no_proxy(config)  # It starts a server at once.
    return tf.distribute.MultiWorkerMirroredStrategy(**options)


class _Extended(_tf.ParameterServerStrategyExtended):
    def __init__(
        self,
        strategy: ParameterServerStrategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        placing: Placing,
    ) -> None:
        super().__init__(strategy, resolver)
        self._placing = placing
        cluster = resolver.cluster_spec()
        self.num_ps = cluster.num_tasks("ps") if cluster else 0
        if self.num_ps:
            # The base class has a round-robin device setter here.
            self._variable_device = tf.compat.v1.train.replica_device_setter(
                ps_tasks=self.num_ps,
                worker_device=f"/job:{resolver.task_type}/task:{resolver.task_id}",
                merge_devices=True,
                cluster=cluster,
                ps_strategy=placing.ps_strategy(self.num_ps),
            )

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        self._placing.record(variable)
        return variable


def _resolver() -> tf.distribute.cluster_resolver.ClusterResolver:
    """The cluster of TF_CONFIG; an empty one for a task that trains alone, or not."""
    config = read_tf_config()
    if config is None or config.task.job == "evaluator":
        return _no_cluster()
    if not config.cluster.has_parameter_servers:
        raise tf_config.ClusterError(
            "ParameterServerStrategy needs a cluster with a chief, workers and a ps; "
            f"TF_CONFIG has {' and '.join(config.cluster.jobs())}: add the address of a "
            "ps, or choose another strategy"
        )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.cluster_spec()),
        task_type=config.task.job,
        task_id=config.task.index,
        num_accelerators={"GPU": len(tf.config.list_logical_devices("GPU"))},
        rpc_layer="grpc",
    )


def _no_cluster() -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({})
    )
