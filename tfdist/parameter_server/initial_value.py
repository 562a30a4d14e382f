"""The initial value of a partitioned variable, shard by shard where that can be."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.parameter_server.layout import Layout

_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones)
_RANDOM = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)


def of_shards(
    initial_value: Any,
    initializer: Any,
    shape: tuple[int, ...],
    dtype: str,
    layout: Layout,
) -> list[Callable[[], tf.Tensor]]:
    """Returns what computes each shard's initial value.

    An initializer whose elements do not depend on the shape is asked for each shard,
    on its ps, so that no process ever holds the whole; a random one with another seed
    for each. Any other initializer (one scaled by the fan-in, say) makes the whole
    value once, on the chief, to be sliced.

    Args:
        initial_value: What `tf.Variable` was given: a value, or a function that
            makes it.
        initializer: The Keras initializer behind it, if there is one.
        shape: Of the whole.
        dtype: Of its elements.
        layout: Of the whole.
    """
    partition = layout.partition
    shapes = [partition.shard_shape(shape, i) for i in range(len(partition.bounds))]
    # Subclasses may look at the shape: these classes themselves do not.
    if type(initializer) in _CONSTANT:
        return [functools.partial(initializer, each, dtype) for each in shapes]
    if type(initializer) in _RANDOM:
        return [
            functools.partial(_reseeded(initializer, i), each, dtype)
            for i, each in enumerate(shapes)
        ]
    with tf.device("CPU:0"):
        whole = initial_value() if callable(initial_value) else initial_value
        parts = layout.split(tf.convert_to_tensor(whole, dtype))
    return [functools.partial(tf.identity, part) for part in parts]


def _reseeded(initializer: Any, shard: int) -> Any:
    """The initializer with a seed for this shard: the same one repeats its values."""
    config = initializer.get_config()
    if not isinstance(initializer.seed, int):
        return initializer
    return type(initializer).from_config({**config, "seed": initializer.seed + shard})
