"""A part of a model that is mixed by itself: what it sends, and what it becomes."""

from collections.abc import Callable

import keras
import numpy as np

from tfdist.local_update.compression import NARROW, Coder, Wire
from tfdist.local_update.exchange import Exchange
from tfdist.local_update.model_vector import ModelVector
from tfdist.local_update.outer_step import OuterStep
from tfdist.mixing import Mean, Mixing


class Fragment:
    """Some variables of a model, which are mixed together; or all of them.

    What narrow messages have lost, the model of the last mix and the outer optimizer's
    state are each fragment's own: it is mixed as a model of its own would be. `begin`
    is where its variables begin, in elements, if all fragments are put one after the
    other: no two begin at the same place.
    """

    def __init__(
        self,
        vector: ModelVector,
        exchange: Exchange,
        mixing: Mixing,
        outer_optimizer: keras.optimizers.Optimizer | None,
        wire_dtype: str | None,
        begin: int,
    ) -> None:
        self.vector = vector
        self.mixes = 0
        self._exchange = exchange
        self._mixing = mixing
        self._outer_optimizer = outer_optimizer
        self._outer: OuterStep | None = None
        self._wire_dtype = wire_dtype
        self._begin = begin
        self._wire: Wire | None = None
        # The trainable weights of the last mix, the same on all workers, where changes since
        # then are what travels: they need fewer bits than weights do. Statistics have all
        # their bits, and travel as they are: so their mean lies between them. A change of a
        # variance, on top of another worker's, could make it negative.
        self._reference = np.zeros(0, vector.dtype)

    def begin(self) -> None:
        """Starts from the variables as they are now, the same on all workers."""
        if self._outer_optimizer is not None and self._outer is None:
            self._outer = OuterStep(self._outer_optimizer, self.vector)
        elif self._outer is not None:
            self._outer.begin()
        if self._wire_dtype is not None:
            narrow, until = NARROW[self._wire_dtype](), self.vector.num_trainable
            self._reference = self.vector.read()[:until]
            self._wire = Wire(Coder(self._reference.dtype, narrow, until))

    def mixed(self, vector: np.ndarray, agree: Callable[[], None]) -> np.ndarray:
        """Exchanges the variables with other workers; returns what they become here.

        `agree` makes the `state` of all fragments equal on all workers: it is called
        when workers were lost.
        """
        round_index, self.mixes = self.mixes, self.mixes + 1
        if isinstance(self._mixing, Mean):
            return self._mean(vector, agree)
        me, present = self._exchange.members.me, self._exchange.members.present
        weights = self._mixing.weights(me, round_index, present)
        return self._exchange.average(vector, weights, self._wire, self._begin)

    def _mean(self, vector: np.ndarray, agree: Callable[[], None]) -> np.ndarray:
        trainable = slice(len(self._reference))
        if self._wire:
            vector = vector.copy()
            vector[trainable] -= self._reference
        mixed = self._exchange.mean(vector, self._wire)
        if self._exchange.has_changed:
            agree()
        if self._wire:
            mixed[trainable] += self._reference
        if self._outer is not None:
            mixed = self._outer(mixed)
        if self._wire:
            self._reference = mixed[trainable]
        return mixed

    @property
    def state(self) -> np.ndarray:
        """What models are compared with, the same on all workers: a vector."""
        outer = self._outer.state if self._outer is not None else self._reference[:0]
        return np.concatenate([self._reference, outer])

    @state.setter
    def state(self, state: np.ndarray) -> None:
        end = len(self._reference)
        self._reference = state[:end].astype(self._reference.dtype)
        if self._outer is not None:
            self._outer.state = state[end:]

    def hand_over(self) -> list[np.ndarray]:
        """Returns what a worker needs to mix these variables with the others from now on."""
        outer = self._outer.variables if self._outer is not None else []
        return [self._reference, *(np.asarray(each.numpy()) for each in outer)]

    def take_over(self, mixes: int, arrays: list[np.ndarray]) -> None:
        """Goes on from what another worker's `hand_over` returned, after its mixes."""
        self.mixes = mixes
        self._reference, *values = arrays
        outer = self._outer.variables if self._outer is not None else []
        for variable, value in zip(outer, values, strict=True):
            variable.assign(value)
