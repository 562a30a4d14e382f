"""Adversarial examples of a Keras model, from arrays to arrays."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.adversarial.evasion import Evasion
from tfdist.adversarial.loss import single_loss

_ROUNDING = 1e-6  # By how much an input may miss the range of values.


def adversarial_examples(
    attack: Evasion,
    model: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    loss: Any = None,
    batch_size: int = 256,
    seed: int = 0,
) -> np.ndarray:
    """Returns each x, changed so that the model errs on y.

    The model predicts as in `predict`: without dropout, and without updates of its
    statistics. Where its loss is flat, as that of a softmax that has saturated, an attack
    finds no direction, and a model looks more robust than it is: logits and a loss with
    `from_logits=True` do not saturate.

    Args:
        attack: `FGSM`, `PGD`, or one of your own.
        model: From x to predictions, with one output.
        x: Floats in the attack's range of values, (examples, ...).
        y: Labels as the loss takes them, (examples, ...).
        loss: A Keras loss or its name. By default, the one the model was compiled with.
        batch_size: Examples per call of the model.
        seed: Of random starts.

    Returns:
        (examples, ...), in the dtype of x.

    Raises:
        ValueError: If x has integers or values out of range, x and y have different
            lengths, or there is no single loss.
    """
    x, y = np.asarray(x), np.asarray(y)
    _check(x, y, attack.value_range, batch_size)
    loss_function = single_loss(model, loss)

    @tf.function(reduce_retracing=True)
    def perturb(x: tf.Tensor, y: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        def loss_of(x: tf.Tensor) -> tf.Tensor:
            return loss_function(y, model(x, training=False))

        return attack.perturbed(loss_of, x, tf.stack([seed, number]))

    found = x.copy()
    for number, start in enumerate(range(0, len(x), batch_size)):
        rows = slice(start, start + batch_size)
        batch = (tf.constant(x[rows]), tf.constant(y[rows]), tf.constant(number))
        found[rows] = perturb(*batch).numpy()
    return found


def _check(
    x: np.ndarray, y: np.ndarray, value_range: tuple[float, float], batch_size: int
) -> None:
    if not np.issubdtype(x.dtype, np.floating):
        raise ValueError(
            "an attack changes floats by fractions; received "
            f"{x.dtype}. For bytes, give x / 255 and value_range=(0, 1)"
        )
    if len(x) != len(y) or batch_size < 1:
        raise ValueError(
            "there is a label for each example, and a batch has 1 or more; received "
            f"{len(x)} examples, {len(y)} labels, {batch_size=}"
        )
    least, greatest = value_range[0] - _ROUNDING, value_range[1] + _ROUNDING
    # Asked this way around, NaN is out of range.
    if x.size and not (x.min() >= least and x.max() <= greatest):
        raise ValueError(
            f"inputs are in the attack's range of values, {value_range}; received "
            f"{x.min():g} to {x.max():g}. Give the attack value_range="
        )
