"""Builds the parts of a `ParameterServerStrategy`, in the order of their use.

First what watches the cluster, since to connect to it may take forever; then, for a strategy
that is connected, what sends steps to its workers.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.cluster import startup
from tfdist.cluster.liveness.activity import Activity
from tfdist.cluster.liveness.patience import Patience
from tfdist.cluster.liveness.step_error import (
    print_records_once,
    shorten_the_coordinators_log,
)
from tfdist.cluster.liveness.watchdog import Watchdog
from tfdist.cluster.presence import Presence
from tfdist.parameter_server.caching.cached_steps import Caches
from tfdist.parameter_server.exchange.report import Exchanges
from tfdist.parameter_server.fit.driver import ParameterServerDriver
from tfdist.parameter_server.fit.pace import MESSAGES_PER_WORKER
from tfdist.parameter_server.gate.gates import Gates
from tfdist.parameter_server.seam import replicas
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.parameter_server.settings import Settings
from tfdist.parameter_server.step_counter import StepCounter
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.refusals import checker_of_scheduled

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class WatchedCluster:
    """The servers of a cluster, and what is known of them."""

    servers: Mapping[tf_config.Task, str]
    activity: Activity
    presence: Presence
    watchdog: Watchdog

    @property
    def workers_here(self) -> dict[tf_config.Task, str]:
        """The addresses of the workers that take part now."""
        return {
            task: address
            for task, address in self.servers.items()
            if task.job == "worker" and task not in self.presence.away
        }

    def connected_replicas(self, num_workers: int) -> tuple[replicas.Replica, ...]:
        """Returns the replicas of all workers, once TensorFlow has connected to them."""
        devices = [each.name for each in tf.config.list_logical_devices()]
        found = replicas.replicas_of(num_workers, devices, replicas.KIND)
        # TensorFlow's coordinator counts replicas, and the launcher knows of workers.
        self.activity.worker_of = [each.worker for each in found]
        return found


def watched_cluster(settings: Settings) -> WatchedCluster:
    """Waits for the servers, and watches them from then on.

    Raises:
        StartupTimeoutError: If a ps or too many workers do not respond in time.
    """
    cluster, min_workers = settings.config.cluster, settings.min_workers
    # Before TensorFlow connects: this wait has a deadline and names missing servers.
    absent = startup.wait_for_servers(
        cluster, settings.job.startup_timeout, min_workers
    )
    tasks = startup.servers_of(cluster)
    activity = Activity(len(cluster.worker))
    presence = Presence(tasks, absent, min_workers, _tf.connect_to_workers)
    watchdog = Watchdog(
        tasks,
        activity,
        settings.timeouts,
        settings.on_stall,
        not_waited_for=lambda: presence.not_waited_for,
    )
    return WatchedCluster(tasks, activity, presence, watchdog)


@dataclass(frozen=True, eq=False, kw_only=True)
class StrategyParts:
    """The components that send steps to workers and hear of lost ones."""

    activity: Activity
    coordinator: tf.distribute.coordinator.ClusterCoordinator
    step_counter: StepCounter
    in_flight: InFlight
    gates: Gates
    caches: Caches
    exchanges: Exchanges
    fit_driver: ParameterServerDriver

    def ended(self, replica: int, is_over: bool) -> None:
        """Notes that a replica's function is over, or lost with the replica."""
        self.activity.ended(replica, is_over)
        if not is_over:
            self.gates.leave(replica)
            self.caches.lose(replica)
            self.in_flight.rounds.worker_lost(replica)


def parts_of(
    strategy: PsStrategy, settings: Settings, cluster: WatchedCluster
) -> StrategyParts:
    """Builds the parts of a strategy that are connected to its cluster."""
    activity = cluster.activity
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    # Before anything else uses the coordinator: to it, each device is a worker.
    if strategy.num_replicas > strategy.num_workers:
        devices = [each.device for each in strategy.replicas]
        _tf.run_on_devices(coordinator, devices)
    step_counter = StepCounter(strategy, cluster.presence)
    caches = Caches(strategy)
    in_flight = InFlight(
        coordinator,
        MESSAGES_PER_WORKER * strategy.num_replicas,
        Patience(coordinator, activity, cluster.watchdog.check),
        caches.flush,
    )
    # All of them before anybody is observed: a worker may be lost at any time, which
    # another thread then tells to each.
    parts = StrategyParts(
        activity=activity,
        coordinator=coordinator,
        step_counter=step_counter,
        in_flight=in_flight,
        gates=Gates(strategy, settings.timeline),
        caches=caches,
        exchanges=Exchanges(strategy.num_replicas),
        fit_driver=ParameterServerDriver(strategy, in_flight, settings.job.checkpoints),
    )
    _tf.look_up_within_branches()
    _tf.check_scheduled(coordinator, checker_of_scheduled(strategy))
    # On TensorFlow's shared executor, each worker's thread would wait after every step for
    # what a slow worker has pending: 3 of 4 workers kept 83% of their speed.
    _tf.give_workers_own_executors(coordinator)
    _tf.observe_workers(coordinator, activity.begun, _weakly(parts.ended))
    shorten_the_coordinators_log()
    print_records_once()
    _await_absent_workers(coordinator, cluster)
    return parts


def _await_absent_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator, cluster: WatchedCluster
) -> None:
    """Waits in the background for workers without which the job may continue."""
    presence = cluster.presence
    # TensorFlow recovers all workers together, so that one that stays away holds up
    # others.
    if presence.is_elastic:
        late = {task.index for task in presence.away}
        _tf.recover_workers_one_by_one(
            coordinator, cluster.activity.worker_of, presence.rejoin, late
        )
    if presence.away:
        _log.warning("%s", presence.describe())


def _weakly(method: Callable[[int, bool], None]) -> Callable[[int, bool], None]:
    """Returns a function that calls a method while its object is there."""
    # The threads of the workers hold on to what they call, and must not to a strategy.
    reference = weakref.WeakMethod(method)

    def call(replica: int, is_over: bool) -> None:
        if (there := reference()) is not None:
            there(replica, is_over)

    return call
