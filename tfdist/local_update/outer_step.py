"""A step of an outer optimizer on what a round of local steps has changed."""

from typing import Any

import keras
import numpy as np

from tfdist.local_update.model_vector import ModelVector


class OuterStep:
    """Takes the change since the last mix for a gradient (DiLoCo).

    With the model θ of the last mix and the mean m of the workers' models, the outer
    optimizer applies the gradient θ - m to θ. SGD with a rate of 1 and no momentum
    gives m itself. Every worker takes the same step, from the same numbers, so no
    message is needed for it. The optimizer's state is kept between calls of `fit`.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
    Models", arXiv 2311.08105, algorithm 1.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, vector: ModelVector
    ) -> None:
        self._optimizer = optimizer
        self._vector = vector
        self._anchors = [
            keras.Variable(each) for each in self._trainable(vector.read())
        ]
        if not optimizer.built:
            optimizer.build(self._anchors)

    def __call__(self, mean: np.ndarray) -> np.ndarray:
        """Returns the model that follows from the mean of the workers' models.

        What is not trainable becomes its mean.
        """
        means = self._trainable(mean)
        pairs = zip(self._anchors, means, strict=True)
        gradients = [keras.ops.subtract(anchor, mean) for anchor, mean in pairs]
        self._optimizer.apply(gradients, self._anchors)
        stepped = [np.asarray(each.numpy()).reshape(-1) for each in self._anchors]
        rest = mean[self._vector.num_trainable :]
        return np.concatenate([*stepped, rest]).astype(mean.dtype)

    def begin(self) -> None:
        """Notes that the model as it is now is the one of the last mix."""
        values = self._trainable(self._vector.read())
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
        return [*self._anchors, *self._optimizer.variables]

    @property
    def _floats(self) -> list[Any]:
        return [each for each in self.variables if "float" in str(each.dtype)]

    def _trainable(self, vector: np.ndarray) -> list[np.ndarray]:
        return self._vector.split(vector)[: self._vector.count_trainable]


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
