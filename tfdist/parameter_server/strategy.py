"""`ParameterServerStrategy`: variables on the ps, steps on the workers."""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.cluster import spinning, status
from tfdist.cluster.lost_variables import losing_variables
from tfdist.cluster.membership import (
    MEMBERSHIP,
    Given,
    JoinsOnce,
    check_eager,
    resolver_of,
)
from tfdist.cluster.reach import have_workers_reach_ps
from tfdist.cluster.settings import JobArguments, takes_job_arguments
from tfdist.consistency.combinations import check_combination
from tfdist.consistency.policy import Consistency, check_consistency, for_workers
from tfdist.consistency.setting import setting_of
from tfdist.consistency.staleness import StalenessReport
from tfdist.data.pipeline_report import PipelineReport
from tfdist.keras.distributed_data import DistributesForFit
from tfdist.parameter_server.assembly import WatchedCluster, parts_of, watched_cluster
from tfdist.parameter_server.caching.report import WhenChangedReport
from tfdist.parameter_server.exchange.policies import (
    ExchangeEvery,
    WhenChanged,
    keeps_values,
)
from tfdist.parameter_server.exchange.report import ExchangeReport
from tfdist.parameter_server.extended import ParameterServerExtended
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.settings import Arguments, Settings, settings_of
from tfdist.placement.placement import Placement
from tfdist.placement.report import PlacementReport, WorkerReport

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ParameterServerStrategy(
    JoinsOnce, DistributesForFit, tf.distribute.ParameterServerStrategy
):
    """Trains on parameter servers and workers; the script runs on the chief.

    Variables created in `scope()` live on the ps that `placement` chooses. A Keras 3
    model built and compiled in the scope trains with its own `fit`: each step runs
    on whichever worker is free, and updates the variables without waiting for the
    other workers. A custom loop with `tf.distribute.coordinator.ClusterCoordinator`
    works as it does with TensorFlow's own strategy, the base class of this one.

    A worker with several GPUs has a replica on each: it computes as many steps at the same
    time, as so many workers would. A step's batch is that of one replica.

    Cost: a step sends every variable that it reads from the ps to its worker, and
    every gradient from the worker to the ps; optimizer slots stay on the ps.

    Args:
        cluster_resolver: The cluster, and this process's task in it: a
            `tf.distribute.cluster_resolver.ClusterResolver` or a `tf_config.TFConfig`.
            Read from the environment variable TF_CONFIG by default. If it names neither
            a chief nor a task, this process is the chief.
        variable_partitioner: Splits large variables, including Keras's, over several ps: one of
            `tf.distribute.experimental.partitioners` or of tfdist's own. Keras still
            sees a single variable, and its optimizer slots are split in the same way;
            a `tf.Variable` becomes TensorFlow's `ShardedVariable`. By default, if there is
            no `placement` either, weights that take 4 ms or more on links slower than
            400 MB/s are split, unless they are tables of embeddings;
            `FixedShardsPartitioner(1)` splits none.
        placement: The rule that chooses the ps of a variable. Defaults to `BestFit()`.
        stall_timeout: How long a task may not respond, a step may not finish, or the
            dataset may not yield a batch, in seconds. Defaults to the environment
            variable TFDIST_STALL_TIMEOUT, which `launch.local --stall_timeout` sets,
            and to 120 without it. `peer_timeout` is the limit of a task alone.
        on_stall: The reaction: "raise" an error, "restart" the stuck tasks (where a
            launcher can), or "warn". By default, a task that does not respond is
            restarted where a launcher can do that; elsewhere it raises an error once
            training makes no progress. A slow step or dataset only causes a warning.
        exchange: How often `fit` and `evaluate` move values between the workers and
            the ps: in each step, `tfdist.ExchangeEvery(k)` for once in k steps, or
            `tfdist.WhenChanged(threshold)` for what has changed enough.
        consistency: The policy for when steps start and which gradients count: one of
            `tfdist.Asynchronous()`, `tfdist.BoundedStaleness(s)` and
            `tfdist.Synchronous()`, or a policy of your own. Defaults to the environment
            variable TFDIST_CONSISTENCY, which `launch.speedup --consistency` sets, and to
            `tfdist.Asynchronous()` without it.
        wire_dtype: "bfloat16" to send large weights, and their dense gradients, in half of
            their bits while `fit` trains; None, the default, to send them as they are. The
            ps keep float32, and each worker adds what its last gradient has lost to its
            next one: see `docs/parameter-servers.md#half-precision`.
        timeline: The file for a trace of when each step of `fit` waited, pulled, computed,
            pushed and wrote, in Chrome's format, which Perfetto opens. Defaults to the
            environment variable TFDIST_TIMELINE, which `launch.local --timeline` sets.
        **job: The arguments of all strategies: `startup_timeout`, `peer_timeout`,
            `min_workers`, `checkpoints` or `checkpoint_dir`. Workers beyond `min_workers`
            join a running `fit` when they come, and are not waited for if they leave.

    Attributes:
        coordinator: The coordinator that sends steps to the workers.
        num_workers: The number of workers in the cluster.
        num_ps: The number of ps in the cluster.
        replicas: The devices that compute steps: one or several per worker.

    Raises:
        ValueError: If a time or a number is not positive, `on_stall` is unknown, or
            `consistency` needs more workers or another `exchange`, `wire_dtype` is unknown
            or goes with neither of them, or there are fewer than `min_workers` workers, or
            workers have different numbers of GPUs.
        tf_config.ClusterError: If there is no valid TF_CONFIG, the cluster has no
            ps, or this process is not its chief.
        StartupTimeoutError: If a ps or a worker does not respond in time.
        TypeError: If `placement` has no method `place`, `exchange` is not an `ExchangeEvery`, or
            `consistency` is not a policy.
        RuntimeError: If this process already has such a strategy, or is in graph mode.
    """

    @takes_job_arguments
    def __init__(
        self,
        cluster_resolver: Given = None,
        variable_partitioner: Callable[..., Any] | None = None,
        *,
        placement: Placement | None = None,
        stall_timeout: float | None = None,
        on_stall: str | None = None,
        exchange: ExchangeEvery | WhenChanged | None = None,
        consistency: Consistency | None = None,
        wire_dtype: str | None = None,
        timeline: str | os.PathLike[str] | None = None,
        **job: "Unpack[JobArguments]",
    ) -> None:
        check_eager("ParameterServerStrategy")
        given = Arguments(
            cluster_resolver=cluster_resolver,
            partitioner=variable_partitioner,
            placement=placement,
            stall_timeout=stall_timeout,
            on_stall=on_stall,
            exchange=exchange,
            consistency=consistency,
            wire_dtype=wire_dtype,
            timeline=timeline,
            job=job,
        )
        settings = settings_of(given)
        self.checkpoints = settings.job.checkpoints
        self.exchange, self.wire_dtype = settings.exchange, settings.wire_dtype
        # A second strategy fails at once, and not after a wait for servers.
        MEMBERSHIP.check_none()
        watched = watched_cluster(settings)
        self._connect(settings, watched)
        parts = parts_of(self, settings, watched)
        self.step_counter, self.coordinator = parts.step_counter, parts.coordinator
        self.in_flight, self.fit_driver = parts.in_flight, parts.fit_driver
        self.gates, self.caches = parts.gates, parts.caches
        self.exchanges, self._parts = parts.exchanges, parts
        # From here on, the policy counts replicas; a worker may have several.
        self._consistency = for_workers(settings.consistency, self.num_replicas)
        self._measures = settings.measures

    is_chief = True
    """True: the program runs on the chief alone."""

    def barrier(self) -> None:
        """Returns at once: no other process runs the program."""

    @property
    def replicas_here(self) -> frozenset[int]:
        """The indices of the replicas that take part now."""
        away = {task.index for task in self.presence.away}
        here = (i for i, each in enumerate(self.replicas) if each.worker not in away)
        return frozenset(here) - self.activity.lost

    def _connect(self, settings: Settings, watched: WatchedCluster) -> None:
        """Joins the cluster, and installs an `extended` that places variables."""
        # Even after a failure, TensorFlow cannot connect a process again.
        MEMBERSHIP.joined(self)
        self.servers, self.activity = watched.servers, watched.activity
        self.presence, self.watchdog = watched.presence, watched.watchdog
        # Not at exit: the watchdog must also catch a process that hangs while exiting.
        weakref.finalize(self, self.watchdog.stop).atexit = False
        config, partitioner = settings.config, settings.partitioner
        with self.activity.call():
            spinning.configure_this_process()
            self._resolver = resolver_of(config, self.presence.away)
            with losing_variables("ParameterServerStrategy"):
                super().__init__(self._resolver, variable_partitioner=partitioner)
            status.publish_here(config)
            self.num_workers = len(config.cluster.worker)
            self.num_ps = len(config.cluster.ps)
            self.replicas = watched.connected_replicas(self.num_workers)
            # TensorFlow's constructor makes its own `extended` and takes no other, so it
            # is replaced here. Nothing has created a variable yet.
            self._extended = ParameterServerExtended(
                self, self._resolver, partitioner, settings.placement
            )
            have_workers_reach_ps(
                watched.workers_here, self.num_ps, settings.job.startup_timeout
            )

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster and this process's task in it."""
        return self._resolver

    @property
    def consistency(self) -> Consistency:
        """The policy for when steps start and which gradients count.

        Raises:
            TypeError: If it is set to something that is not a policy.
            ValueError: If it needs more workers, or another `exchange`.
            RuntimeError: If it is set within an epoch.
        """
        return self._consistency

    @consistency.setter
    def consistency(self, policy: Consistency) -> None:
        check_consistency(policy)
        check_combination(policy, self.exchange, self.wire_dtype)
        policy = for_workers(policy, self.num_replicas)
        self.fit_driver.check_is_between_epochs()
        self._consistency = policy
        self._measures = True

    @property
    def gate(self) -> Gate | None:
        """The gate at which steps of the current policy take turns, or None."""
        return self.gates.of(self._consistency) if self._measures else None

    def staleness_report(self) -> StalenessReport:
        """Reports how stale the training steps of `fit` were, and how long they waited.

        Counted on a ps, from the first step on. A table when printed; `plot` draws it.

        Raises:
            RuntimeError: If nothing was counted: no step has run, or the strategy was
                given no policy.
        """
        return self.gates.checked_report()

    def exchange_report(self) -> ExchangeReport | WhenChangedReport:
        """Reports what `exchange=` does with each variable that steps write.

        It covers the models that `fit` and `evaluate` have used so far, and prints as a
        list. The report of `WhenChanged` says how often each weight has moved, too.

        Raises:
            tf.errors.OpError: With `WhenChanged`, while a worker or a ps is down.
        """
        noted = self.exchanges.report(self.exchange.steps)
        return self.caches.report(noted) if keeps_values(self.exchange) else noted

    def pipeline_report(
        self,
        dataset: tf.data.Dataset,
        batches: int = 32,
        step_seconds: float | None = None,
    ) -> PipelineReport:
        """Measures the cost of a pipeline on each worker, by stage, and advises.

        Each worker reads so many batches alone, once for each stage: call it between calls
        of `fit`. As any iteration, it takes one of the orders of a dataset that shuffles.

        Args:
            dataset: One that workers read by leases.
            batches: How many batches each worker reads.
            step_seconds: How long a training step takes on a worker. By default as in the
                last epoch of `fit`; one of few steps tells little.

        Raises:
            SourceError: If workers do not read it by leases, with the reason; or if one of
                them cannot.
        """
        return self.fit_driver.pipeline_report(dataset, batches, step_seconds)

    @property
    def consistency_setting(self) -> str:
        """The policy as `launch.speedup --consistency` names it."""
        return setting_of(self._consistency, self.num_replicas)

    @property
    def num_replicas(self) -> int:
        """The number of steps that can be computed at the same time."""
        return len(self.replicas)

    @property
    def input_contexts(self) -> list[tf.distribute.InputContext]:
        """The input pipelines of all workers. A step's batch is that of one replica."""
        return [
            tf.distribute.InputContext(
                self.num_workers, index, self.num_replicas_in_sync
            )
            for index in range(self.num_workers)
        ]

    def worker_report(self) -> WorkerReport:
        """Asks every worker how many training steps of `fit` it has run.

        It also says how long a worker may wait for its link in a step, and what would take
        less of it. A restarted worker counts from 0 again. With `min_workers`, one that is
        away counts as 0.

        Raises:
            tf.errors.OpError: While a worker is down: a CancelledError or an
                UnavailableError. Ask again once it is back. Never with fewer
                `min_workers` than workers.
        """
        report = self.step_counter.report()
        return replace(report, link_use=self.fit_driver.link_use())

    def placement_report(self) -> PlacementReport:
        """Reports where every variable that still exists lives."""
        return PlacementReport(self.num_ps, self._extended.placed.report())
