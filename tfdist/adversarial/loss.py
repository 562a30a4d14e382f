"""The loss that an attack looks at."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def single_loss(model: keras.Model, loss: Any = None) -> Callable[..., tf.Tensor]:
    """Returns the loss as a function of labels and predictions.

    Args:
        model: Whose loss it is, if none is given.
        loss: A Keras loss or its name.

    Raises:
        ValueError: If there is none, or several.
    """
    loss = getattr(model, "loss", None) if loss is None else loss
    if loss is None or isinstance(loss, dict | list | tuple):
        raise ValueError(
            "an attack looks at one loss: compile the model with one, or give loss=, such as "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True); received "
            f"{'none' if loss is None else 'several'}"
        )
    return keras.losses.get(loss)
