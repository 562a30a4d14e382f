"""The train steps of a model, under whichever policy of consistency is set."""

from collections.abc import Callable

import keras

from tfdist._support.types import Logs, Nest
from tfdist.consistency.synchronous import Synchronous
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.steps import refusals
from tfdist.parameter_server.steps.backup_steps import BackupSteps
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.round_steps import RoundSteps
from tfdist.parameter_server.steps.worker_steps import WorkerSteps


class TrainSteps:
    """Asks for the policy at each call, and traces the steps once for each policy."""

    data_type = Feed

    def __init__(
        self, model: keras.Model, in_flight: InFlight, step: Callable[[Nest], Nest]
    ) -> None:
        self._model = model
        self._in_flight = in_flight
        self._step = step
        self._by_policy: dict[Synchronous | None, WorkerSteps] = {}
        self._current()

    def on_data(self, data: Feed) -> Logs:
        """Sends the next steps to workers, and returns the logs of finished steps.

        Raises:
            StopIteration: If no batch is left; all steps have finished.
        """
        return self._current().on_data(data)

    def on_batch(self, batch: Nest) -> Logs:
        """Runs one step on a worker, and waits for its logs."""
        return self._current().on_batch(batch)

    def _current(self) -> WorkerSteps:
        policy = self._model.distribute_strategy.consistency
        key = policy if isinstance(policy, Synchronous) else None
        if key not in self._by_policy:
            refusals.check_model(self._model, is_synchronous=key is not None)
            self._by_policy[key] = self._new(key)
        return self._by_policy[key]

    def _new(self, policy: Synchronous | None) -> WorkerSteps:
        model, in_flight, step = self._model, self._in_flight, self._step
        if policy is None:
            return WorkerSteps(model, in_flight, step, is_training=True)
        if policy.backup_workers:
            return BackupSteps(model, in_flight, step, policy)
        assert policy.replicas_to_aggregate is not None
        return RoundSteps(model, in_flight, step, policy.replicas_to_aggregate)
