"""A part of a model that is mixed by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdist.local_update.compression import NARROW, Coder, Wire
from tfdist.local_update.exchange import Exchange
from tfdist.local_update.mixing import Mean, Mixing
from tfdist.local_update.model_vector import ModelVector


@dataclass(eq=False)
class Fragment:
    """Some variables of a model, which are mixed together; or all of them.

    What narrow messages have lost, the model of the last mix and the outer optimizer's
    state are each fragment's own: it is mixed as a model of its own would be. `place`
    is where its variables begin, in elements, if all fragments are put one after the
    other: no two begin at the same place.
    """

    vector: ModelVector
    exchange: Exchange
    mixing: Mixing
    outer_optimizer: keras.optimizers.Optimizer | None
    wire_dtype: str | None
    place: int

    def __post_init__(self) -> None:
        self.mixes = 0
        self._outer: OuterStep | None = None
        self._wire: Wire | None = None
        # The trainable weights of the last mix, the same on all workers, where changes since
        # then are what travels: they need fewer bits than weights do. Statistics have all
        # their bits, and travel as they are: so their mean lies between them. A change of a
        # variance, on top of another worker's, could make it negative.
        self._reference = np.zeros(0, self.vector.dtype)

    def begin(self) -> None:
        """Starts from the variables as they are now, the same on all workers."""
        if self.outer_optimizer is not None and self._outer is None:
            self._outer = OuterStep(self.outer_optimizer, self.vector)
        elif self._outer is not None:
            self._outer.begin()
        if self.wire_dtype is not None:
            narrow, until = NARROW[self.wire_dtype](), self.vector.num_trainable
            self._reference = self.vector.read()[:until]
            self._wire = Wire(Coder(self._reference.dtype, narrow, until))

    def mixed(self, vector: np.ndarray, agree: Callable[[], None]) -> np.ndarray:
        """Exchanges the variables with other workers; returns what they become here.

        `agree` makes the `state` of all fragments equal on all workers: it is called
        when workers were lost.
        """
        round_index, self.mixes = self.mixes, self.mixes + 1
        if isinstance(self.mixing, Mean):
            return self._mean(vector, agree)
        me, present = self.exchange.members.me, self.exchange.members.present
        weights = self.mixing.weights(me, round_index, present)
        return self.exchange.average(vector, weights, self._wire, self.place)

    def _mean(self, vector: np.ndarray, agree: Callable[[], None]) -> np.ndarray:
        trainable = slice(len(self._reference))
        if self._wire:
            # The caller's own is still needed: an overlapped mix is added to it later.
            vector = vector.copy()
            vector[trainable] -= self._reference
        mixed = self.exchange.mean(vector, self._wire)
        # First, since it may replace the reference that is added next.
        if self.exchange.has_changed:
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
        """The vector that models are compared with, the same on all workers."""
        outer = self._outer.state if self._outer is not None else self._reference[:0]
        return np.concatenate([self._reference, outer])

    @state.setter
    def state(self, state: np.ndarray) -> None:
        end = len(self._reference)
        self._reference = state[:end].astype(self._reference.dtype)
        if self._outer is not None:
            self._outer.state = state[end:]

    def hand_over(self) -> list[np.ndarray]:
        """Returns the state that a worker needs to mix these variables from now on."""
        outer = self._outer.variables if self._outer is not None else []
        return [self._reference, *(np.asarray(each.numpy()) for each in outer)]

    def take_over(self, mixes: int, arrays: list[np.ndarray]) -> None:
        """Continues from another worker's `hand_over`, after its mixes."""
        self.mixes = mixes
        self._reference, *values = arrays
        outer = self._outer.variables if self._outer is not None else []
        for variable, value in zip(outer, values, strict=True):
            variable.assign(value)


@dataclass(eq=False)
class OuterStep:
    """Takes the change since the last mix for a gradient (DiLoCo).

    With the model θ of the last mix and the mean m of the workers' models, the outer
    optimizer applies the gradient θ - m to θ. SGD with a rate of 1 and no momentum
    gives m itself. Every worker takes the same step, from the same numbers, so no
    message is needed for it. The optimizer's state is kept between calls of `fit`.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
    Models", arXiv 2311.08105, algorithm 1.
    """

    optimizer: keras.optimizers.Optimizer
    vector: ModelVector

    def __post_init__(self) -> None:
        self._anchors = [
            keras.Variable(each) for each in self._trainable(self.vector.read())
        ]
        if not self.optimizer.built:
            self.optimizer.build(self._anchors)

    def __call__(self, mean: np.ndarray) -> np.ndarray:
        """Returns the model that follows from the mean of the workers' models.

        Variables that are not trainable become their mean.
        """
        means = self._trainable(mean)
        pairs = zip(self._anchors, means, strict=True)
        gradients = [keras.ops.subtract(anchor, mean) for anchor, mean in pairs]
        self.optimizer.apply(gradients, self._anchors)
        stepped = [np.asarray(each.numpy()).reshape(-1) for each in self._anchors]
        rest = mean[self.vector.num_trainable :]
        return np.concatenate([*stepped, rest]).astype(mean.dtype)

    def begin(self) -> None:
        """Notes that the model as it is now is the one of the last mix."""
        values = self._trainable(self.vector.read())
        for anchor, value in zip(self._anchors, values, strict=True):
            anchor.assign(value)

    @property
    def state(self) -> np.ndarray:
        """The model of the last mix and the optimizer's slots, as a vector of float32."""
        parts = [np.ravel(each.numpy()).astype(np.float32) for each in self._floats]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    @state.setter
    def state(self, state: np.ndarray) -> None:
        begin = 0
        for variable in self._floats:
            end = begin + int(np.prod(variable.shape))
            variable.assign(state[begin:end].reshape(variable.shape))
            begin = end

    @property
    def variables(self) -> list[Any]:
        """The model of the last mix, and the optimizer's variables."""
        return [*self._anchors, *self.optimizer.variables]

    @property
    def _floats(self) -> list[Any]:
        return [each for each in self.variables if "float" in str(each.dtype)]

    def _trainable(self, vector: np.ndarray) -> list[np.ndarray]:
        return self.vector.split(vector)[: self.vector.count_trainable]


def one_each(
    optimizer: keras.optimizers.Optimizer | None, count: int
) -> list[keras.optimizers.Optimizer | None]:
    """Returns as many optimizers as there are fragments of a model: copies, if several.

    One for all would count as many steps as there are fragments where each takes one, which
    a schedule, Adam's correction of its bias and the like are computed from. A learning rate
    that is no schedule stays that of the original, also when that changes.

    Raises:
        ValueError: If the optimizer cannot be copied.
    """
    if optimizer is None or count == 1:
        return [optimizer] * count
    config = optimizer.get_config()
    try:
        copies = [type(optimizer).from_config(dict(config)) for _ in range(count)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"fragments={count} needs a copy of outer_optimizer for each fragment, which "
            f"{type(optimizer).__name__}.from_config(optimizer.get_config()) did not make "
            f"({error}). Give it a learning rate that is a number or a schedule, and a class "
            "of your own a get_config of all its arguments; or leave fragments out"
        ) from error
    if isinstance(config.get("learning_rate"), float):
        for each in copies:
            each.learning_rate = lambda: optimizer.learning_rate
    return copies
