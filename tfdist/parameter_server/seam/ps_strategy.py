"""The part of a `ParameterServerStrategy` that its rooms use."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf

import tf_config
from tfdist.cluster.liveness.activity import Activity
from tfdist.cluster.presence import Presence
from tfdist.consistency.policy import Consistency
from tfdist.parameter_server.exchange.policies import ExchangeEvery, WhenChanged
from tfdist.parameter_server.exchange.report import Exchanges
from tfdist.parameter_server.seam.replicas import Replica
from tfdist.placement.report import PlacementReport, WorkerReport


class StepsInFlight(Protocol):
    """The steps that were sent to workers, as those see them who wait for them."""

    def under_way(self, since: int = 0) -> list[tuple[Any, int]]:
        """Returns the functions in flight, and of how many steps each is."""

    def waiting(self) -> AbstractContextManager[None]:
        """Surrounds a wait for workers."""

    def wait_until(self, has_ended: Callable[[float], bool]) -> None:
        """Waits until it has ended."""

    def check(self) -> None:
        """Raises an error if workers do not answer."""


class PsStrategy(Protocol):
    """A connected strategy: see the attributes of `ParameterServerStrategy`."""

    activity: Activity
    coordinator: tf.distribute.coordinator.ClusterCoordinator
    exchange: ExchangeEvery | WhenChanged
    exchanges: Exchanges
    extended: tf.distribute.StrategyExtended
    num_ps: int
    num_workers: int
    presence: Presence
    replicas: tuple[Replica, ...]
    servers: Mapping[tf_config.Task, str]
    wire_dtype: str | None

    @property
    def consistency(self) -> Consistency:
        """The policy for when steps start and which gradients count."""

    @property
    def in_flight(self) -> StepsInFlight:
        """The steps in flight."""

    @property
    def num_replicas(self) -> int:
        """The number of steps that can be computed at the same time."""

    @property
    def replicas_here(self) -> frozenset[int]:
        """The indices of the replicas that take part now."""

    def placement_report(self) -> PlacementReport:
        """Reports where every variable lives."""

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Runs a function in each replica."""

    def scope(self) -> AbstractContextManager[Any]:
        """Has TensorFlow create variables on the ps."""

    def worker_report(self) -> WorkerReport:
        """Reports how many steps each worker has run."""
