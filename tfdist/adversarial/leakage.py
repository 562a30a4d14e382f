"""Leakage: what a client's update tells about the examples it was computed from.

An update is a function of the examples, and its inputs can be searched for: those whose
update points in the same direction as the one that was sent. Sources: Zhu, Liu and Han, "Deep
Leakage from Gradients", NeurIPS 2019; Zhao, Mopuri and Bilen, "iDLG", 2020, for the label; and
Geiping et al., "Inverting Gradients", NeurIPS 2020, for the objective, and for updates of
several local steps.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.adversarial.loss import single_loss

_STEADY = 1e-12  # Keeps square roots from a slope that is infinite.


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """What a client does between the model it got and the update it sends: steps of SGD.

    One step over all examples with a learning rate of 1 sends the gradient, negated.

    Args:
        learning_rate: Above 0.
        epochs: 1 or more.
        batch_size: Examples per step, in their order; None is all of them.
    """

    learning_rate: float = 1.0
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or self.epochs < 1:
            raise ValueError(
                "local steps have a learning rate above 0, and 1 or more epochs; received "
                f"learning_rate={self.learning_rate}, epochs={self.epochs}"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"a batch has 1 or more; received {self.batch_size}")

    def update(
        self, model: keras.Model, x: tf.Tensor, y: tf.Tensor, *, loss: Any = None
    ) -> list[tf.Tensor]:
        """Returns the change of each trainable variable; the model keeps its own.

        Gradients flow through it to x. The model runs as in `predict`, without dropout, and
        its statistics stay. Cost: two passes forward and backward per step if gradients
        are taken, and the activations of all steps in memory.

        Args:
            model: From x to predictions, with one output.
            x: Floats, (examples, ...).
            y: Labels as the loss takes them, (examples, ...).
            loss: A Keras loss or its name. By default, the one the model was compiled with.

        Raises:
            ValueError: If there is no single loss.
        """
        loss_function = single_loss(model, loss)
        fixed = [variable.value for variable in model.non_trainable_variables]
        start = [tf.convert_to_tensor(each.value) for each in model.trainable_variables]
        weights, count = start, int(x.shape[0])
        size = self.batch_size or count
        for first in list(range(0, count, size)) * self.epochs:
            rows = slice(first, first + size)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                predicted, _ = model.stateless_call(weights, fixed, x[rows])
                value = tf.reduce_mean(loss_function(y[rows], predicted))
            slopes = tape.gradient(value, weights, unconnected_gradients="zero")
            weights = [
                weight - self.learning_rate * slope
                for weight, slope in zip(weights, slopes, strict=True)
            ]
        return [one - other for one, other in zip(weights, start, strict=True)]


def inferred_label(bias_update: np.ndarray) -> int:
    """Returns the label of one example, from the update of the bias of the logits.

    The gradient of the cross-entropy there is softmax - onehot: one number of it is
    negative, that of the label. Of a batch, it is the most frequent label as a rule.

    Args:
        bias_update: (classes,): minus a gradient, or what some local steps add up to.

    Raises:
        ValueError: If it has another number of dimensions.
    """
    if np.ndim(bias_update) != 1:
        raise ValueError(
            "a bias has one number for each class; received shape "
            f"{np.shape(bias_update)}"
        )
    return int(np.argmax(bias_update))


@dataclasses.dataclass(frozen=True)
class GradientInversion:
    """Searches for the examples behind an update.

    Minimizes 1 - cos(update of x, update sent) + `smoothness` TV(x) by signed steps of Adam,
    within the range of values. The cosine does not depend on the length of the update:
    clipping alone does not hinder it. TV(x) is the mean absolute difference of neighbours.
    Cost: about 4 times a client's local steps per iteration.

    Args:
        iterations: 1 or more.
        step_size: The first iterations' change of a number, above 0. It falls to a tenth
            after 3/8, 5/8 and 7/8 of them.
        smoothness: The weight of the total variation, 0 or more.
        value_range: The smallest and the largest number of an input.
        seed: Of the start.
    """

    iterations: int = 1000
    step_size: float = 0.1
    smoothness: float = 1e-2
    value_range: tuple[float, float] = (0.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.step_size > 0 or not self.smoothness >= 0:
            raise ValueError(
                "a search has 1 or more iterations, a step size above 0, and a smoothness "
                f"of 0 or more; received {self}"
            )

    def reconstruct(
        self,
        model: keras.Model,
        sent: Sequence[np.ndarray],
        y: np.ndarray,
        steps: LocalSteps = LocalSteps(),  # noqa: B008  It is frozen.
        *,
        loss: Any = None,
    ) -> tuple[np.ndarray, float]:
        """Returns examples, (len(y), ...), and the cosine distance that is left, 0 to 2.

        Args:
            model: With the weights that the client got.
            sent: The client's update: an array for each trainable variable, in order.
            y: The labels, such as from `inferred_label`.
            steps: What the client did.
            loss: A Keras loss or its name. By default, the one the model was compiled with.

        Raises:
            ValueError: If the update is that of another model, or there is no single loss.
        """
        _check_update(model, sent)
        goal = tf.constant(np.concatenate([np.ravel(each) for each in sent]))
        labels = tf.constant(y)

        def distance(x: tf.Tensor) -> tf.Tensor:
            found = steps.update(model, x, labels, loss=loss)
            flat = tf.concat([tf.reshape(each, [-1]) for each in found], axis=0)
            return 1 - tf.reduce_sum(flat * goal) / (_length(flat) * _length(goal))

        start = tf.random.stateless_uniform(
            (len(y), *model.input_shape[1:]), (self.seed, 0), *self.value_range
        )
        x, left = tf.function(self._search)(distance, start)
        return x.numpy(), float(left)

    def _search(
        self, distance: Callable[[tf.Tensor], tf.Tensor], start: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        cuts = [self.iterations * eighths // 8 for eighths in (3, 5, 7)]
        beta, gamma = 0.9, 0.999

        def iteration(
            i: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, square: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(x)
                value = distance(x) + self.smoothness * _variation(x)
            slope = tf.sign(tape.gradient(value, x))
            mean = beta * mean + (1 - beta) * slope
            square = gamma * square + (1 - gamma) * slope**2
            t = tf.cast(i + 1, x.dtype)
            step = (mean / (1 - beta**t)) / (tf.sqrt(square / (1 - gamma**t)) + 1e-8)
            passed = tf.reduce_sum(tf.cast(i >= cuts, x.dtype))
            x = x - self.step_size * 10.0**-passed * step
            return i + 1, tf.clip_by_value(x, *self.value_range), mean, square

        zeros = tf.zeros_like(start)
        _, x, _, _ = tf.while_loop(
            lambda i, *_: i < self.iterations,
            iteration,
            (tf.constant(0), start, zeros, zeros),
        )
        return x, distance(x)


def _length(flat: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(flat**2) + _STEADY)


def _variation(x: tf.Tensor) -> tf.Tensor:
    """Of images, (examples, height, width, channels); other inputs have no neighbours."""
    if x.shape.rank != 4:
        return tf.constant(0.0, x.dtype)
    down = tf.reduce_mean(tf.abs(x[:, 1:] - x[:, :-1]))
    return down + tf.reduce_mean(tf.abs(x[:, :, 1:] - x[:, :, :-1]))


def _check_update(model: keras.Model, sent: Sequence[np.ndarray]) -> None:
    expected = [tuple(each.shape) for each in model.trainable_variables]
    received = [np.shape(each) for each in sent]
    if received != expected:
        raise ValueError(
            "an update has an array for each trainable variable of the model, of shapes "
            f"{expected}; received {received}"
        )
