"""Strategies for Estimators: graph mode, and every task runs the script."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import tf_config
from tfdist.cluster.membership import PS, command_of
from tfdist.estimator import _tf
from tfdist.estimator.environment import check_no_proxy, read_tf_config
from tfdist.placement.greedy import GreedyLoadBalancing
from tfdist.placement.placement import Placement, check_placement, ps_for
from tfdist.placement.report import PlacedVariable, PlacementReport
from tfdist.placement.variable_spec import spec_of_operation


class ParameterServerStrategy(
    tf.compat.v1.distribute.experimental.ParameterServerStrategy
):
    """Trains an Estimator on parameter servers, asynchronously.

        strategy = estimator.ParameterServerStrategy()
        config = estimator.RunConfig(train_distribute=strategy)

    It differs from TensorFlow's `tf.compat.v1.distribute.experimental` strategy in the
    placement of variables: TensorFlow places them round-robin, regardless of their size.
    Without a TF_CONFIG, everything runs in this process.

    Args:
        placement: Decides on which ps a variable lives; default:
            `GreedyLoadBalancing()`. Every task decides for itself, and all must get the
            same result: a custom placement must not be random.
        partitioner: Splits the variables that the model creates with
            `tf.compat.v1.get_variable`, as a partitioner of
            `tf.compat.v1.variable_scope` does: one of TF1's or one of tfdist's.

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
        self._placing = _Placing(placement)
        self._partitioner = partitioner
        # Skips the base class, whose `__init__` creates TensorFlow's extended object.
        tf.compat.v1.distribute.Strategy.__init__(
            self, _Extended(self, _resolver(), self._placing)
        )

    @contextmanager
    def scope(self) -> Iterator[Any]:
        """Enters the strategy's scope, in which the partitioner splits variables."""
        with super().scope() as strategy:
            if self._partitioner is None:
                yield strategy
                return
            # The current scope, so that the names of variables do not change.
            variable_scope = tf.compat.v1.get_variable_scope()
            with tf.compat.v1.variable_scope(
                variable_scope, partitioner=self._partitioner
            ):
                yield strategy

    def placement_report(self) -> PlacementReport:
        """Returns where the variables of the most recently built model live."""
        return PlacementReport(self.extended.num_ps, self._placing.variables)


def MultiWorkerMirroredStrategy(  # noqa: N802  Called like the class.
    **options: Any,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns a `tf.distribute.MultiWorkerMirroredStrategy` of TensorFlow.

    Unlike TensorFlow's constructor, it also works on an evaluator that is not listed in
    the cluster of its TF_CONFIG.

    Args:
        **options: Options of the constructor, such as `communication_options`.

    Raises:
        tf_config.ClusterError: If TF_CONFIG is not valid, or TensorFlow would reach
            another task through a proxy.
    """
    config = read_tf_config()
    if config is not None and config.task.job == "evaluator":
        # From TF_CONFIG, TensorFlow would require the evaluator to be in the cluster.
        options["cluster_resolver"] = _no_cluster()
    elif config is not None:
        check_no_proxy(config)  # The constructor starts a server.
    return tf.distribute.MultiWorkerMirroredStrategy(**options)


class _Placing:
    """Asks a placement for the ps of each variable of a graph, and records the answers.

    Every task builds the same graph and must get the same answers. So each graph starts
    with a fresh copy of the placement, even if the process has built another graph before
    that other tasks have not. TensorFlow makes many copies of a strategy, which share
    one `_Placing`.
    """

    def __init__(self, placement: Placement) -> None:
        self._fresh = placement
        self._graph: weakref.ref[tf.Graph] | None = None
        self._placement = placement
        self._variables: list[PlacedVariable] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Placing":
        # A `RunConfig` copies its strategy; the user's own is asked for the report.
        return self

    @property
    def variables(self) -> tuple[PlacedVariable, ...]:
        """The variables of the most recent graph, in creation order."""
        return tuple(self._variables)

    def ps_strategy(self, num_ps: int) -> Callable[[tf.Operation], int]:
        """Returns the `ps_strategy` for `tf.compat.v1.train.replica_device_setter`."""

        def place(op: tf.Operation) -> int:
            self._begin(op.graph)
            return ps_for(self._placement, spec_of_operation(op), num_ps)

        return place

    def record(self, variable: Any) -> None:
        """Records a variable that has been created, slots included."""
        self._begin(variable.graph)
        device = tf.DeviceSpec.from_string(variable.device)
        if device.job == "ps":
            self._variables.append(
                PlacedVariable(spec_of_operation(variable.op), device.task or 0)
            )

    def _begin(self, graph: tf.Graph) -> None:
        # Weak, so that the strategy does not keep a finished graph in memory.
        if self._graph is None or self._graph() is not graph:
            self._graph = weakref.ref(graph)
            self._placement = copy.deepcopy(self._fresh)
            self._variables = []


class _Extended(_tf.ParameterServerStrategyExtended):
    def __init__(
        self,
        strategy: ParameterServerStrategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        placing: _Placing,
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
    """Returns the cluster of TF_CONFIG; for a single process or an evaluator, none."""
    config = read_tf_config()
    if config is None or config.task.job == "evaluator":
        return _no_cluster()
    if not config.cluster.has_parameter_servers:
        raise tf_config.ClusterError(
            "ParameterServerStrategy needs a cluster with a chief, workers and ps; "
            f"TF_CONFIG has {' and '.join(config.cluster.jobs())}: choose another strategy, "
            f"or add a ps. {command_of(PS, config)}"
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
