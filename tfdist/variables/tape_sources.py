"""Gradients by variables in shards: a tape records the shards, whose gradients are joined.

TensorFlow differentiates by what a tape, a loop or a `tf.function` has captured: handles of
variables on a ps. A variable in shards has none, and so needs nothing of its own there.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.variables.partitioned import PartitionedVariable


def with_shards(sources: Any) -> Any:
    """Returns a structure in which each variable in shards is the tuple of these."""
    return tf.nest.map_structure(lambda each: _shards_of(each) or each, sources)


def gradient_by_shards(
    tape_gradient: Callable[..., Any], target: Any, sources: Any, *options: Any
) -> Any:
    """Returns what `tf.GradientTape.gradient` should, if sources are in shards.

    `tape_gradient` is that method, bound to the tape.
    """
    flat = tf.nest.flatten(sources)
    if not any(map(_shards_of, flat)):
        return tape_gradient(target, sources, *options)
    found = tape_gradient(
        target, [_shards_of(each) or (each,) for each in flat], *options
    )
    joined = [
        _partitioned(each).changes.join_gradients(of_shards)
        if _shards_of(each)
        else of_shards[0]
        for each, of_shards in zip(flat, found, strict=True)
    ]
    return tf.nest.pack_sequence_as(sources, joined)


def _shards_of(source: Any) -> tuple[Any, ...]:
    whole = _partitioned(source)
    return () if whole is None else whole.shards


def _partitioned(source: Any) -> Any:
    value = _tf.value_of(source) if isinstance(source, keras.Variable) else source
    return value if isinstance(value, PartitionedVariable) else None
