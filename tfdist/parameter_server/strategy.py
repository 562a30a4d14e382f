"""`ParameterServerStrategy`: variables on the ps, steps on the workers."""

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist import _tf
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.cluster import servers, status
from tfdist.cluster.membership import (
    MEMBERSHIP,
    JoinsOnce,
    check_eager,
    config_of,
    resolver_of,
)
from tfdist.keras import hooks
from tfdist.liveness.activity import Activity
from tfdist.liveness.patience import Patience
from tfdist.liveness.stall import check_on_stall
from tfdist.liveness.step_error import print_records_once, shorten_the_coordinators_log
from tfdist.liveness.watchdog import Watchdog
from tfdist.parameter_server.extended import ParameterServerExtended
from tfdist.parameter_server.fit.driver import ParameterServerDriver
from tfdist.parameter_server.fit.in_flight import STEPS_PER_WORKER, InFlight
from tfdist.parameter_server.step_counter import StepCounter
from tfdist.placement.placement import (
    GreedyLoadBalancing,
    Placement,
    check_placement,
)
from tfdist.placement.report import (
    PlacementReport,
    WorkerReport,
)


class ParameterServerStrategy(JoinsOnce, tf.distribute.ParameterServerStrategy):
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
        partitioner: Splits large variables, Keras's too, over several ps: one of
            `tf.distribute.experimental.partitioners`, or of tfdist's own. A Keras
            variable stays one to Keras, and so do its optimizer slots, which are
            split as it is; a `tf.Variable` becomes TensorFlow's `ShardedVariable`.
        startup_timeout: How long to wait for the ps and the workers, in seconds.
        stall_timeout: For how long a task may not answer, a step not finish, or the
            dataset not give a batch, in seconds. From the environment variable
            TFDIST_STALL_TIMEOUT, which `launch.local --stall_timeout` sets, unless
            given; without it, 120.
        on_stall: What is done then: "raise" an error, have the tasks that keep it
            waiting started again ("restart", by a launcher that can), or "warn". Unless
            given, a task that does not answer is started again where there is such a
            launcher, and elsewhere is an error once nothing goes on; a slow step or a
            slow dataset is only warned of.
        checkpoint_dir: Where `fit` keeps checkpoints, from which it goes on when the
            program is started again. The chief and every ps write there, by the same
            path. From the environment variable TFDIST_CHECKPOINT_DIR, which
            `launch.local --checkpoint_dir` sets, unless given; without it there are
            none.
        checkpoint_interval: How often one is begun, in seconds.
        checkpoints_to_keep: How many of the newest are kept of each `fit`.

    Raises:
        ValueError: If a time or a number is not positive, or there is no such `on_stall`.
        tf_config.ClusterError: If there is no valid TF_CONFIG, the cluster has no
            ps, or this process is not its chief.
        StartupTimeoutError: If a ps or a worker does not answer in time.
        TypeError: If `placement` has no method `place`.
        RuntimeError: If this process has such a strategy already, or a worker has
            more than one GPU, or in graph mode.
    """

    def __init__(
        self,
        cluster: tf_config.TFConfig | None = None,
        placement: Placement | None = None,
        partitioner: Callable[..., Any] | None = None,
        *,
        startup_timeout: float = 60.0,
        stall_timeout: float | None = None,
        on_stall: str | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval: float = 30.0,
        checkpoints_to_keep: int = 3,
    ) -> None:
        check_eager("ParameterServerStrategy")
        placement = GreedyLoadBalancing() if placement is None else placement
        check_placement(placement)
        checkpoints = CheckpointOptions(
            checkpoint_dir or os.environ.get(contract.CHECKPOINT_DIR),
            checkpoint_interval,
            checkpoints_to_keep,
        )
        stall_timeout = _stall_timeout(stall_timeout)
        check_on_stall(on_stall)
        config = _chief_of(cluster)
        MEMBERSHIP.check_none()
        servers.wait_for_servers(config.cluster, startup_timeout)
        MEMBERSHIP.joined(self)
        self.activity = Activity(len(config.cluster.worker))
        self.servers = servers.servers_of(config.cluster)
        self.watchdog = Watchdog(self.servers, self.activity, stall_timeout, on_stall)
        # It keeps watching while the process exits.
        weakref.finalize(self, self.watchdog.stop).atexit = False
        with self.activity.call():
            self._connect(config, partitioner, placement)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
        self._step_counter = StepCounter(self)
        self._in_flight = InFlight(
            self._coordinator,
            STEPS_PER_WORKER * self.num_workers,
            Patience(self._coordinator, self.activity, self.watchdog.check),
        )
        _tf.give_workers_own_executors(self._coordinator)
        _tf.observe_workers(self._coordinator, self.activity.begun, self.activity.ended)
        self.checkpoints = checkpoints
        self.fit_driver = ParameterServerDriver(self, self._in_flight, checkpoints)
        hooks.install()
        shorten_the_coordinators_log()
        print_records_once()

    def _connect(
        self,
        config: tf_config.TFConfig,
        partitioner: Callable[..., Any] | None,
        placement: Placement,
    ) -> None:
        """Joins the cluster, with an `extended` that places variables."""
        self._resolver = resolver_of(config)
        super().__init__(self._resolver, variable_partitioner=partitioner)
        status.publish_here(config)
        self._extended = ParameterServerExtended(
            self, self._resolver, config.cluster, partitioner, placement
        )
        if self.num_replicas_in_sync > 1:
            raise RuntimeError(
                f"each worker shows {self.num_replicas_in_sync} GPUs, and a worker "
                "runs one step at a time: start one worker task per GPU, each with its "
                "own CUDA_VISIBLE_DEVICES"
            )

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster, and this process's task in it."""
        return self._resolver

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
        return self._extended.num_workers

    @property
    def num_ps(self) -> int:
        """The number of ps in the cluster."""
        return self._extended.num_ps

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any = None
    ) -> Any:
        """As in TensorFlow; `fit` reads the dataset on the chief."""
        distributed = super().experimental_distribute_dataset(dataset, options)
        distributed.tfdist_source = dataset
        return distributed

    def count_step(self) -> None:
        """Adds one, inside a step, to the count of the worker that runs it."""
        self._step_counter.count()

    def worker_report(self) -> WorkerReport:
        """Asks every worker how many training steps of `fit` it has run.

        A worker that was started again counts from then on.

        Raises:
            tf.errors.OpError: While a worker is away: a CancelledError or an
                UnavailableError. Ask again once it is back.
        """
        return self._step_counter.report()

    def check_placement_is_complete(self, weights: Iterable[Any] = ()) -> None:
        """Checks, before the first step, that the model is the one that was planned.

        Args:
            weights: The model's, whose optimizer has made its slots.

        Raises:
            PlanMismatchError: If a variable or a slot of the plan is missing, or a
                variable is there more often than planned.
        """
        self._extended.check_placement_is_complete(weights)

    def placement_report(self) -> PlacementReport:
        """Says where every variable lives that still exists."""
        return PlacementReport(self.num_ps, self._extended.placed_variables())


def _stall_timeout(given: float | None) -> float:
    """Returns the seconds that the user or the launcher gave, or 120.

    Raises:
        ValueError: If that is not a positive number.
    """
    text = os.environ.get(contract.STALL_TIMEOUT, "120")
    try:
        seconds = float(text) if given is None else given
    except ValueError:
        raise ValueError(
            f"{contract.STALL_TIMEOUT} must be a time > 0 seconds; received {text!r}"
        ) from None
    if not seconds > 0:
        raise ValueError(f"stall_timeout must be > 0 seconds; received {seconds!r}")
    return seconds


def _chief_of(cluster: tf_config.TFConfig | None) -> tf_config.TFConfig:
    cluster = config_of(cluster, "--num_ps=2 --num_workers=2")
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
