"""Rounds that end without the slowest workers."""

from typing import Any

import tensorflow as tf

from tfdist.parameter_server.rounds.lead import FollowingTurnstile, LeadTurnstile
from tfdist.parameter_server.rounds.rounds import Rounds
from tfdist.parameter_server.rounds.turnstile import Turnstile, step_of
from tfdist.parameter_server.step_graph.step_graph import StepGraph


class BackupRounds(Rounds):
    """The rounds of a model under `tfdist.Synchronous(backup_workers=b)`.

    A batch does not belong to a round: its step joins the current one. One ps, the *lead*,
    decides which gradients count, and the others follow.

    Cost: beyond `Rounds`, a step waits for the lead before it reads from other ps, and
    before it writes there.
    """

    def __init__(self, model: Any, enough: int, started: int) -> None:
        self._started = started
        super().__init__(model, enough)

    def _turnstile(self, device: str) -> Turnstile:
        workers = self._strategy.num_replicas
        if device == self.gate.device:
            return LeadTurnstile(device, workers, self.enough, self._started)
        return FollowingTurnstile(device, workers, self.enough)

    @property
    def lead(self) -> LeadTurnstile:
        """The turnstile that decides."""
        lead = self.turnstiles[self.gate.device]
        assert isinstance(lead, LeadTurnstile)
        return lead

    def _passing(self, passing: tf.Tensor, lost: tf.Tensor) -> None:
        super()._passing(passing, lost)
        self.lead.leave(lost)

    def _first(self, ticket: tf.Tensor) -> Any:
        return tf.constant(0, tf.int64)

    def _enter(
        self, ticket: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        joined = self.lead.join(self.gate.worker, ticket[1])
        entered = {
            device: joined if each is self.lead else each.enter(joined)
            for device, each in self.turnstiles.items()
        }
        return entered, joined, joined < 0

    def _admit(
        self, computed_in: tf.Tensor, ready: tf.Tensor, batch: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        counts, of_lead = self.lead.decide(ready, self.gate.worker, batch)
        steps = {
            device: each.admit_as(counts, batch)
            for device, each in self.turnstiles.items()
            if isinstance(each, FollowingTurnstile)
        }
        with tf.device(self.gate.device):
            return {**steps, self.gate.device: of_lead}, tf.equal(
                of_lead, step_of(True)
            )

    def update(self, rounds: int = 1) -> Any:
        """Returns the function without arguments that waits for a round and ends it."""
        assert rounds == 1, "how many there will be is not known"
        if 1 not in self._updates:
            graph = StepGraph(
                self._strategy, self._end_full, [], entered=lambda: self._complete
            )
            with self._strategy.scope():
                self._updates[1] = tf.function(
                    lambda: graph.add([], "round") and None, autograph=False
                ).get_concrete_function()
        return self._updates[1]

    def _end_full(self) -> None:
        self._end_round(self.lead.full())
