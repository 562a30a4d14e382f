"""One mix of models: the policy's weights, the exchange, and the outer step."""

from concurrent.futures import Future
from typing import Any

import keras
import numpy as np

from tfdist.local_update.exchange import Exchange
from tfdist.local_update.model_vector import ModelVector
from tfdist.local_update.outer_step import OuterStep
from tfdist.local_update.overlap import after_overlap
from tfdist.local_update.rounds import Rounds
from tfdist.local_update.wire import NARROW, Coder, Wire
from tfdist.mixing import Mean, Mixing


class Mix:
    """Mixes the models of the workers when a round of local steps ends.

    Args:
        model: The Keras model of this worker.
        exchange: This worker's part in exchanges.
        mixing: Who mixes with whom.
        local_steps: How many local steps a round has.
        outer_optimizer: A Keras optimizer, or None.
        wire_dtype: One of `wire.NARROW`, or None.
        overlap: Whether a mix runs during the next round of local steps.
    """

    def __init__(
        self,
        model: Any,
        exchange: Exchange,
        mixing: Mixing,
        local_steps: int,
        outer_optimizer: keras.optimizers.Optimizer | None,
        wire_dtype: str | None = None,
        overlap: bool = False,
    ) -> None:
        self._exchange = exchange
        self._mixing = mixing
        self._outer_optimizer = outer_optimizer
        self._outer: OuterStep | None = None
        self._wire_dtype = wire_dtype
        self._wire: Wire | None = None
        # The trainable weights of the last mix, the same on all workers, where changes since
        # then are what travels: they need fewer bits than weights do. Statistics have all
        # their bits, and travel as they are: so their mean lies between them. A change of a
        # variance, on top of another worker's, could make it negative.
        self._reference = np.zeros(0)
        self._overlap = overlap
        # The model when a mix began, and what the mix makes of it.
        self._under_way: tuple[np.ndarray, Future[np.ndarray]] | None = None
        self.vector = ModelVector(model)
        self.rounds = Rounds(local_steps)

    def begin(self) -> None:
        """Starts from the model as it is now, the same on all workers."""
        if self._outer_optimizer is not None and self._outer is None:
            self._outer = OuterStep(self._outer_optimizer, self.vector)
        elif self._outer is not None:
            self._outer.begin()
        if self._wire_dtype is not None:
            narrow, until = NARROW[self._wire_dtype](), self.vector.num_trainable
            self._reference = self.vector.read()[:until]
            self._wire = Wire(Coder(self._reference.dtype, narrow, until))

    def step_done(self) -> None:
        """Counts a local step, and mixes if it was the last of a round."""
        if not self.rounds.step():
            return
        if self._overlap:
            self._end_overlap()
            self._begin_overlap()
        else:
            self.mix()

    def finish(self) -> None:
        """Ends the round with the steps that it has, if it has any."""
        self._end_overlap()
        if self.rounds.is_open:
            self.mix()

    def mix(self) -> None:
        """Mixes the models of the workers that are present."""
        self.vector.write(self._mixed(self.vector.read(), self.rounds.mixed))
        self.rounds.mix()

    def _begin_overlap(self) -> None:
        """Begins to mix the models as they are now."""
        snapshot, round_index = self.vector.read(), self.rounds.mixed
        mixed = self._exchange.in_background(lambda: self._mixed(snapshot, round_index))
        self._under_way = snapshot, mixed
        self.rounds.mix()

    def _end_overlap(self) -> None:
        """Waits for the mix that is under way, if one is, and takes what it has made."""
        if self._under_way is None:
            return
        (snapshot, mixed), self._under_way = self._under_way, None
        model, trainable = self.vector.read(), self.vector.num_trainable
        self.vector.write(after_overlap(model, snapshot, mixed.result(), trainable))

    def _mixed(self, vector: np.ndarray, round_index: int) -> np.ndarray:
        """Exchanges models; returns what this worker's becomes."""
        if isinstance(self._mixing, Mean):
            return self._mean(vector)
        me, present = self._exchange.members.me, self._exchange.members.present
        weights = self._mixing.weights(me, round_index, present)
        return self._exchange.average(vector, weights, self._wire)

    def _mean(self, vector: np.ndarray) -> np.ndarray:
        trainable = slice(len(self._reference))
        if self._wire:
            vector = vector.copy()
            vector[trainable] -= self._reference
        mixed = self._exchange.mean(vector, self._wire)
        if self._exchange.has_changed:
            self._agree()
        if self._wire:
            mixed[trainable] += self._reference
        if self._outer is not None:
            mixed = self._outer(mixed)
        if self._wire:
            self._reference = mixed[trainable]
        return mixed

    def _agree(self) -> None:
        """Averages what workers compare their models with.

        A worker that is lost in a mix leaves the others with different parts. Models become
        equal in the next mix; what they are compared with does not.
        """
        outer = self._outer.state if self._outer is not None else _NOTHING
        reference = self._reference if self._wire else _NOTHING
        if not len(outer) + len(reference):
            return
        state = self._exchange.mean_again(np.concatenate([reference, outer]))
        if self._wire:
            self._reference = state[: len(reference)].astype(reference.dtype)
        if self._outer is not None:
            self._outer.state = state[len(reference) :]


_NOTHING = np.zeros(0, np.float32)
