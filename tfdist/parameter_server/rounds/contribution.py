"""What a step gives to its round."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Contribution:
    """The gradients of one batch.

    Attributes:
        optimizer: The Keras optimizer that is to apply their average.
        gradients: A gradient or None for each variable.
        variables: The variables, as the optimizer expects them.
        weight: What the gradients count, in units of examples; a scalar tensor.
    """

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]
    weight: tf.Tensor
