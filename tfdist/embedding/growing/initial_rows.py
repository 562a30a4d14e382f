"""First values of rows, which depend on (seed, id, column) alone."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.embedding.growing.hashing import numbers_of

Rows = Callable[[tf.Tensor, int | tf.Tensor], tf.Tensor]
"""Takes ids `[n]` and a seed, and returns their first rows `[n, width]`."""

# A float32 has 24 bits, and one of them is for the half that is added below.
_BITS = 23


def rows_by(initializer: Any, width: int, dtype: str) -> Rows:
    """Returns a function that gives ids their first rows, for a Keras initializer.

    Raises:
        ValueError: If the initializer's values depend on more than a seed.
    """
    value = _values_by(initializer)

    def rows(ids: tf.Tensor, seed: int | tf.Tensor) -> tf.Tensor:
        numbers = numbers_of(ids, width, seed)
        top = tf.bitwise.right_shift(numbers, tf.constant(64 - _BITS, tf.uint64))
        # In (0, 1), so that the normal distribution's quantiles are finite.
        uniform = (tf.cast(top, tf.float32) + 0.5) * 2.0**-_BITS
        return tf.cast(value(uniform), dtype)

    return rows


def _values_by(initializer: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from uniform numbers in (0, 1) to those of an initializer."""
    kind, initializers = type(initializer), keras.initializers
    if kind is initializers.RandomUniform:
        low, high = initializer.minval, initializer.maxval
        return lambda uniform: low + (high - low) * uniform
    if kind in (initializers.RandomNormal, initializers.TruncatedNormal):
        mean, deviation = initializer.mean, initializer.stddev
        # Keras, too, draws again what is more than two deviations away.
        least = 0.02275013 if kind is initializers.TruncatedNormal else 0.0
        return lambda uniform: (
            mean + deviation * tf.math.ndtri(least + (1.0 - 2.0 * least) * uniform)
        )
    constants = {initializers.Zeros: 0.0, initializers.Ones: 1.0}
    if kind is initializers.Constant and not hasattr(initializer.value, "__len__"):
        constants[kind] = float(initializer.value)
    if kind in constants:
        return lambda uniform: tf.fill(tf.shape(uniform), constants[kind])
    raise ValueError(
        "embeddings_initializer of a table that grows is uniform, normal, truncated "
        f"normal or a constant, which need no more than a seed; received {initializer!r}"
    )
