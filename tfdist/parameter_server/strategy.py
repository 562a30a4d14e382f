"""`ParameterServerStrategy`: variables on the ps, steps on the workers."""

import contextvars
import os
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.keras.in_flight import STEPS_PER_WORKER, InFlight
from tfdist.parameter_server import connect
from tfdist.parameter_server.placement import (
    GreedyLoadBalancing,
    Placement,
    VariableSpec,
    check_placement,
    ps_for,
)
from tfdist.parameter_server.report import (
    PlacedVariable,
    PlacementReport,
    WorkerReport,
)
from tfdist.parameter_server.variable import ParameterServerVariable

variable_path: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "variable_path", default=None
)
"""The path of the Keras variable that is being created, where Keras creates one."""


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """Trains on a cluster of parameter servers and workers, from the chief.

    Variables created in `scope()` live on the ps that `placement` chooses. A Keras 3
    model built and compiled in the scope trains with its own `fit`: each step runs
    on whichever worker is free, and updates the variables without waiting for the
    other workers. A custom loop with `tf.distribute.coordinator.ClusterCoordinator`
    works as with TensorFlow's own strategy, which this is a subclass of.

    Cost: a step moves to its worker every variable that it reads, and back to the
    ps every gradient; optimizer slots stay on the ps.

    Args:
        cluster: The cluster, and the chief as this process's task. From the
            environment variable TF_CONFIG unless given.
        placement: Which ps a variable lives on.
        partitioner: Splits a large `tf.Variable` over several ps, as in
            `tf.distribute.experimental.partitioners`. Keras variables cannot be
            split yet, and say so.
        startup_timeout: How long to wait for the ps and the workers, in seconds.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, the cluster has no
            ps, or this process is not its chief.
        StartupTimeoutError: If a ps or a worker does not answer in time.
        TypeError: If `placement` has no method `place`.
        RuntimeError: If this process has such a strategy already, or a worker has
            more than one GPU.
    """

    _connected_process: int | None = None

    def __init__(
        self,
        cluster: tf_config.TFConfig | None = None,
        placement: Placement | None = None,
        partitioner: Callable[..., Any] | None = None,
        *,
        startup_timeout: float = 60.0,
    ) -> None:
        # Imported late: the hooks have to know this class.
        from tfdist.keras import hooks

        placement = GreedyLoadBalancing() if placement is None else placement
        check_placement(placement)
        config = _chief_of(cluster)
        _connect_once()
        connect.wait_for_servers(config.cluster, startup_timeout)
        ParameterServerStrategy._connected_process = os.getpid()
        super().__init__(_resolver(config), variable_partitioner=partitioner)
        self._extended = ParameterServerExtended(
            self, _resolver(config), partitioner, placement
        )
        if self.num_replicas_in_sync > 1:
            raise RuntimeError(
                f"each worker shows {self.num_replicas_in_sync} GPUs, and a worker "
                "runs one step at a time: start one worker task a GPU, each with its "
                "own CUDA_VISIBLE_DEVICES"
            )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
        with self.scope():
            # It lives on the worker that counts: proof of where a step ran.
            self._worker_steps = tf.Variable(
                0, dtype=tf.int64, trainable=False, per_worker_variable=True
            )
        self._has_counted = False
        self._in_flight = InFlight(
            self._coordinator, limit=STEPS_PER_WORKER * self.num_workers
        )
        hooks.install()

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """The coordinator that sends steps to the workers."""
        return self._coordinator

    @property
    def in_flight(self) -> InFlight:
        """The steps of `fit`, `evaluate` and `predict` that are under way."""
        return self._in_flight

    @property
    def num_workers(self) -> int:
        """The number of workers in the cluster."""
        return int(self._num_workers)

    @property
    def num_ps(self) -> int:
        """The number of ps in the cluster."""
        return int(self._num_ps)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any = None
    ) -> Any:
        """As in TensorFlow; `fit` reads the dataset on the chief."""
        distributed = super().experimental_distribute_dataset(dataset, options)
        distributed.tfdist_source = dataset
        return distributed

    def count_step(self) -> None:
        """Adds one, inside a step, to the count of the worker that runs it."""
        self._has_counted = True
        self._worker_steps.assign_add(1)

    def worker_report(self) -> WorkerReport:
        """Asks every worker how many training steps of `fit` it has run."""
        if not self._has_counted:
            return WorkerReport((0,) * self.num_workers)
        return WorkerReport(tuple(int(s) for s in self._worker_steps.read_all()))

    def placement_report(self) -> PlacementReport:
        """Says where every variable lives that still exists."""
        return PlacementReport(self.num_ps, self._extended.placed_variables())


class ParameterServerExtended(_tf.ParameterServerStrategyV2Extended):
    """Creates the variables of a `ParameterServerStrategy`."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        partitioner: Callable[..., Any] | None,
        placement: Placement,
    ) -> None:
        super().__init__(strategy, resolver, partitioner)
        self._retrace_functions_for_each_device = len(self.worker_devices) > 1
        self._placement = placement
        self._placed: list[tuple[weakref.ref[Any], PlacedVariable]] = []

    def placed_variables(self) -> tuple[PlacedVariable, ...]:
        """The variables that are still in use, in creation order."""
        return tuple(
            placed for variable, placed in self._placed if variable() is not None
        )

    def _create_var_creator(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> Callable[..., tf.Variable]:
        def create(**kwargs: Any) -> tf.Variable:
            # A variable that a step creates when it is traced leaves the graph with
            # its device, and without its colocation.
            beside = kwargs.get("colocate_with")
            with tf.device(beside.device) if beside is not None else nullcontext():
                created = next_creator(**kwargs)
            variable = ParameterServerVariable(created, self._num_workers)
            self._record(variable)
            return variable

        return create

    def _create_variable_round_robin(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        # The base class takes the ps from its count of variables, modulo num_ps.
        self._variable_count = ps_for(
            self._placement, _spec_before_creation(kwargs), self._num_ps
        )
        return super()._create_variable_round_robin(next_creator, **kwargs)

    def _record(self, variable: ParameterServerVariable) -> None:
        name = variable_path.get() or variable.name.removesuffix(":0")
        spec = _spec(name, variable.shape, variable.dtype)
        device = tf.DeviceSpec.from_string(variable.device)
        placed = PlacedVariable(spec, device.task)
        self._placed.append((weakref.ref(variable), placed))

    def _assert_being_scheduled_by_cluster_coordinator(self) -> None:
        # The base class warns of `run` outside of a scheduled function. A step is
        # traced before it is scheduled, so only a call that would really run on the
        # chief deserves the warning.
        if tf.executing_eagerly():
            super()._assert_being_scheduled_by_cluster_coordinator()


def _connect_once() -> None:
    if ParameterServerStrategy._connected_process == os.getpid():
        raise RuntimeError(
            "this process has a ParameterServerStrategy already, and TensorFlow "
            "connects a process to one cluster, once. Keep that strategy and use it "
            "again, or start a new process"
        )


def _chief_of(cluster: tf_config.TFConfig | None) -> tf_config.TFConfig:
    if cluster is None and not os.environ.get("TF_CONFIG"):
        raise tf_config.ClusterError(
            "TF_CONFIG is not set: start this script with `python -m launch.local "
            "--num_ps=2 --num_workers=2 SCRIPT` for a cluster on this machine, or with "
            "`python -m launch.task` on each host of a cluster"
        )
    if cluster is None:
        cluster = tf_config.TFConfig.from_environment()
    if not isinstance(cluster, tf_config.TFConfig):
        raise TypeError(
            "cluster is a tf_config.TFConfig(cluster, tf_config.Task('chief', 0)): the "
            f"tf_config.Cluster, and this process's task; received {cluster!r}"
        )
    if not cluster.cluster.has_parameter_servers:
        raise tf_config.ClusterError(
            "ParameterServerStrategy needs a cluster with a ps, a worker and a chief; "
            f"received the jobs {', '.join(cluster.cluster.as_dict())}"
        )
    if cluster.task.job != "chief":
        raise tf_config.ClusterError(
            f"ParameterServerStrategy runs on the chief alone; this task is "
            f"{cluster.task}. A ps or a worker runs `python -m tfdist.server`, which "
            "python -m launch.task and python -m launch.local start for you"
        )
    return cluster


def _resolver(
    config: tf_config.TFConfig,
) -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.cluster_spec()),
        task_type=config.task.job,
        task_id=config.task.index,
        rpc_layer="grpc",
    )


def _spec_before_creation(kwargs: dict[str, Any]) -> VariableSpec:
    """What will be created, from the arguments of `tf.Variable`."""
    shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
    if shape is None or dtype is None:
        value = kwargs["initial_value"]
        # Keras gives a function and no shape. Traced, it tells its shape without
        # the memory or the time of a value.
        with _tf.scratch_graph("variable_spec").as_default():
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
        shape, dtype = value.shape, value.dtype
    scopes = (tf.get_current_name_scope(), kwargs.get("name") or "Variable")
    name = variable_path.get() or "/".join(filter(None, scopes))
    return _spec(name, shape, dtype)


def _spec(name: str, shape: Any, dtype: Any) -> VariableSpec:
    dtype = tf.as_dtype(dtype)
    return VariableSpec(
        name, tuple(tf.TensorShape(shape).as_list()), dtype.name, dtype.size
    )
