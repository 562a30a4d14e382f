"""`ParameterServerStrategy`: variables on the ps, steps on the workers."""

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist import _tf
from tfdist.cluster import servers, status
from tfdist.cluster.membership import (
    MEMBERSHIP,
    JoinsOnce,
    check_eager,
    config_of,
    resolver_of,
)
from tfdist.liveness.activity import Activity
from tfdist.liveness.patience import Patience
from tfdist.liveness.stall import ON_STALL
from tfdist.liveness.watchdog import Watchdog
from tfdist.parameter_server.extended import ParameterServerExtended
from tfdist.parameter_server.fit.in_flight import STEPS_PER_WORKER, InFlight
from tfdist.placement.placement import (
    GreedyLoadBalancing,
    Placement,
    check_placement,
)
from tfdist.placement.report import (
    PlacementReport,
    WorkerReport,
)

if TYPE_CHECKING:
    from tfdist.parameter_server.fit.resume import ResumableFit

_CHECKPOINT_DIR = contract.CHECKPOINT_DIR
_STALL_TIMEOUT = contract.STALL_TIMEOUT
"""The variables by which a launcher names the directory, and says how long to wait."""


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
        # Imported late: the hooks have to know this class.
        from tfdist.keras import hooks

        check_eager("ParameterServerStrategy")
        placement = GreedyLoadBalancing() if placement is None else placement
        check_placement(placement)
        if stall_timeout is None:
            stall_timeout = _stall_timeout(os.environ.get(_STALL_TIMEOUT, "120"))
        _check_options(
            checkpoint_interval, checkpoints_to_keep, stall_timeout, on_stall
        )
        config = _chief_of(cluster)
        MEMBERSHIP.check_none()
        servers.wait_for_servers(config.cluster, startup_timeout)
        MEMBERSHIP.joined(self)
        self.activity = Activity(len(config.cluster.worker))
        self.servers = servers.servers_of(config.cluster)
        self.watchdog = Watchdog(self.servers, self.activity, stall_timeout, on_stall)
        # While the process ends, somebody has to watch.
        weakref.finalize(self, self.watchdog.stop).atexit = False
        with self.activity.call():
            super().__init__(resolver_of(config), variable_partitioner=partitioner)
            status.publish_here(config)
            self._extended = ParameterServerExtended(
                self, resolver_of(config), partitioner, placement
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
            self._coordinator,
            STEPS_PER_WORKER * self.num_workers,
            Patience(self._coordinator, self.activity, self.watchdog.check),
        )
        _tf.give_workers_own_executors(self._coordinator)
        _tf.observe_workers(self._coordinator, self.activity.begun, self.activity.ended)
        self.checkpoint_dir = checkpoint_dir or os.environ.get(_CHECKPOINT_DIR)
        self.checkpoint_interval = checkpoint_interval
        self.checkpoints_to_keep = checkpoints_to_keep
        self.resumable_fit: ResumableFit | None = None
        self._fits = 0
        hooks.install()

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster, and this process's task in it."""
        return self._cluster_resolver

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
        """Asks every worker how many training steps of `fit` it has run.

        One that was started again counts from then on.

        Raises:
            tf.errors.OpError: While a worker is away: a CancelledError or an
                UnavailableError. Ask again once it is back.
        """
        if not self._has_counted:
            return WorkerReport((0,) * self.num_workers)
        return WorkerReport(tuple(int(s) for s in self._worker_steps.read_all()))

    @property
    def resumes_fit(self) -> bool:
        """Whether the next `fit` writes checkpoints; one within another does not."""
        return bool(self.checkpoint_dir) and self.resumable_fit is None

    def next_fit(self) -> int:
        """Counts the calls of `fit` that write checkpoints: 0 for the first."""
        self._fits += 1
        return self._fits - 1

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


def _stall_timeout(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{_STALL_TIMEOUT} is a time > 0 s; received {text!r}"
        ) from None


def _check_options(
    checkpoint_interval: float,
    checkpoints_to_keep: int,
    stall_timeout: float,
    on_stall: str | None,
) -> None:
    for name, seconds in (
        ("checkpoint_interval", checkpoint_interval),
        ("stall_timeout", stall_timeout),
    ):
        if not seconds > 0:
            raise ValueError(f"{name} is a time > 0 s; received {seconds!r}")
    if not (isinstance(checkpoints_to_keep, int) and checkpoints_to_keep > 0):
        raise ValueError(
            f"checkpoints_to_keep is a number > 0; received {checkpoints_to_keep!r}"
        )
    if on_stall is not None and on_stall not in ON_STALL:
        raise ValueError(
            f"on_stall is one of {', '.join(ON_STALL)}, or None; received {on_stall!r}"
        )


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
