"""Evasion: small changes of an input that change what a trained model says about it.

An attack looks for the input with the largest loss among those that differ from the
original by at most epsilon in each number (the L-infinity ball), and are inputs at all (the
range of values).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

# From inputs to losses, of any shape: an attack raises their sum.
LossOfInputs = Callable[[tf.Tensor], tf.Tensor]


class Evasion(Protocol):
    """An attack on inputs, as TensorFlow operations."""

    @property
    def value_range(self) -> tuple[float, float]:
        """The smallest and the largest number of an input."""

    def perturbed(
        self, loss_of: LossOfInputs, x: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Returns inputs with a larger loss; to use in a graph, or eagerly.

        Args:
            loss_of: From inputs to their losses. The loss of an example must not depend on
                the other examples.
            x: Floats in the range of values, (examples, ...).
            seed: int32, (2,), of random numbers. The same gives the same result.

        Returns:
            As x. No gradient flows through it.
        """


@dataclasses.dataclass(frozen=True)
class FGSM:
    """The fast gradient sign method: one step of epsilon in each number.

    x' = x + epsilon sign(d loss / dx), cut off at the range of values. It is the worst case
    if the loss is monotone in a linear function of x. Cost: one gradient. Source:
    Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR
    2015, section 4.

    Args:
        epsilon: The largest change of a number, above 0.
        value_range: The smallest and the largest number of an input.
    """

    epsilon: float
    value_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self.epsilon, self.value_range)

    def perturbed(
        self, loss_of: LossOfInputs, x: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Returns inputs with a larger loss; see `Evasion.perturbed`."""
        del seed  # Nothing is random.
        moved = x + self.epsilon * _uphill(loss_of, x)
        return tf.stop_gradient(tf.clip_by_value(moved, *self.value_range))


@dataclasses.dataclass(frozen=True)
class PGD:
    """Projected gradient descent: small steps of the sign, back into the ball each time.

    Cost: a gradient per step. Source: Madry et al., "Towards Deep Learning Models Resistant
    to Adversarial Attacks", ICLR 2018, section 2.1.

    Args:
        epsilon: The largest change of a number, above 0.
        steps: 1 or more.
        step_size: Above 0; by default 2.5 epsilon / steps, so that steps reach any point of
            the ball from any other.
        random_start: Whether it starts at a point of the ball by chance, and not at x.
        value_range: The smallest and the largest number of an input.
    """

    epsilon: float
    steps: int = 40
    step_size: float | None = None
    random_start: bool = True
    value_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self.epsilon, self.value_range)
        if self.steps < 1:
            raise ValueError(f"there are 1 or more steps; received steps={self.steps}")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(
                f"a step size is above 0 and finite; received {self.step_size}"
            )

    def perturbed(
        self, loss_of: LossOfInputs, x: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Returns inputs with a larger loss; see `Evasion.perturbed`."""
        size = self.step_size or 2.5 * self.epsilon / self.steps
        least, greatest = self.value_range
        lower = tf.maximum(x - self.epsilon, least)
        upper = tf.minimum(x + self.epsilon, greatest)
        start = x
        if self.random_start:
            start += tf.random.stateless_uniform(
                tf.shape(x), seed, -self.epsilon, self.epsilon, x.dtype
            )

        def step(number: tf.Tensor, now: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            moved = now + size * _uphill(loss_of, now)
            return number + 1, tf.clip_by_value(moved, lower, upper)

        _, found = tf.while_loop(
            lambda number, _: number < self.steps,
            step,
            (tf.constant(0), tf.clip_by_value(start, lower, upper)),
        )
        return tf.stop_gradient(found)


def _uphill(loss_of: LossOfInputs, x: tf.Tensor) -> tf.Tensor:
    # Without this, tape and gradient would not be those of x where x is computed itself.
    x = tf.stop_gradient(x)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        total = tf.reduce_sum(loss_of(x))
    return tf.sign(tape.gradient(total, x))


def _check(epsilon: float, value_range: tuple[float, float]) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is above 0 and finite; received {epsilon}")
    least, greatest = value_range
    if not least < greatest:
        raise ValueError(
            "a range of values is its smallest and its largest number; received "
            f"{value_range}"
        )
