"""Moves variables to the devices of their stages, once."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.pipeline.extended import PipelineExtended, note_beside, noted_beside


def move(
    extended: PipelineExtended,
    placed: Iterable[tuple[keras.Variable, str]],
    others: Iterable[Any],
) -> int:
    """Moves Keras variables, and whatever was created beside them.

    Values go from device to device. A variable that is in place is not touched.

    Args:
        extended: Creates variables.
        placed: Variables and their devices.
        others: The variables that may be beside them: an optimizer's.

    Returns:
        The number of bytes that were moved.
    """
    moved: dict[int, tf.Variable] = {}
    total = 0
    kept = []
    for variable, device in placed:
        old = _tf.value_of(variable)
        if old.device != device:
            moved[id(old)] = _move_one(extended, variable, device)
            kept.append(old)
            total += _bytes(old)
    for variable in others:
        old = _tf.value_of(variable)
        if (weight := moved.get(id(noted_beside(old)))) is not None:
            note_beside(_move_one(extended, variable, weight.device), weight)
            total += _bytes(old)
    return total


def _move_one(
    extended: PipelineExtended, variable: keras.Variable, device: str
) -> tf.Variable:
    old = _tf.value_of(variable)
    with extended.creating_on(device):
        new = tf.Variable(
            lambda: tf.identity(old),
            trainable=old.trainable,
            dtype=old.dtype,
            name=old.name.partition(":")[0],
            synchronization=old.synchronization,
            aggregation=old.aggregation,
        )
    _tf.set_value(variable, new)
    return new


def _bytes(variable: tf.Variable) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)
