"""Deals the batches of `fit` out to the workers, where rounds end without the slowest."""

import contextlib
import weakref
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.consistency.synchronous import Synchronous
from tfdist.parameter_server.feed.sources import ChiefBatches
from tfdist.parameter_server.rounds.backup_rounds import BackupRounds
from tfdist.parameter_server.rounds.rounds import Rounds
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.round_steps import RoundSteps


class BackupSteps(RoundSteps):
    """Runs the train steps of a model in rounds of the first N gradients.

    Each message has one batch, and any worker takes the next one: a slow worker holds up
    no more than one.
    """

    _rounds: BackupRounds | None

    def __init__(
        self,
        model: keras.Model,
        in_flight: InFlight,
        step: Callable[[Nest], Nest],
        policy: Synchronous,
    ) -> None:
        assert policy.replicas_to_aggregate is not None
        super().__init__(model, in_flight, step, policy.replicas_to_aggregate)
        self._backups = policy.backup_workers
        self._has_update = False

    def _new_rounds(self) -> Rounds:
        return BackupRounds(self._model, self._batches, self._batches + self._backups)

    def _deal(
        self, source: ChiefBatches, rows: list[tf.Tensor], is_usual: bool
    ) -> None:
        self._updates.raise_error()
        for row in rows:
            self._send(source, [row], self._batch)
            self._batch += 1
            # The first step has been traced, with the gradients that there are.
            if not self._has_update:
                assert self._rounds
                update = self._rounds.update()
                self._updates.repeat(update, _ending_waits(self._rounds))
                self._has_update = True

    def _recover(self) -> None:
        self._updates.raise_error()
        super()._recover()

    def finish(self) -> None:
        """Ends the last round with the gradients that it has, and waits for all rounds."""
        self._in_flight.join()
        if self._rounds is None:
            return
        gradients = self._state()[1]
        # A round without any has no average: it has not begun.
        if gradients:
            self._rounds.lead.end(gradients)
            self._wait(gradients)

    def complete(self) -> None:
        """Waits for the rounds that are full."""
        self._recover()
        self._wait(self._batches)

    def _wait(self, gradients: int) -> None:
        """Waits for the update of the current round, if it has that many gradients."""
        if not self._has_update:
            return

        def rounds() -> int:
            number, so_far = self._state()
            return number + int(so_far >= gradients)

        self._updates.wait(rounds, self._in_flight.waiting(), self._check)

    def _state(self) -> tuple[int, int]:
        """Returns the number of the round, and of its gradients."""
        assert self._rounds
        number, gradients = self._rounds.lead.state().numpy()
        return int(number), int(gradients)

    def reset(self) -> None:
        """Gives up what is in flight, after an error."""
        self._has_update = False
        super().reset()


def _ending_waits(rounds: BackupRounds) -> Callable[[], None]:
    """Returns a function that ends steps' waits for rounds, while these exist."""
    # Weakly: the thread of `Updates` holds this, and must not hold the rounds.
    reference = weakref.ref(rounds)

    def end() -> None:
        with contextlib.suppress(tf.errors.OpError):
            if (there := reference()) is not None:
                there.let_all_pass(True)

    return end
