"""The Keras side of variables that live on a ps, and gradients by them.

TensorFlow differentiates by what a tape, a loop or a `tf.function` has captured: handles of
variables on a ps. A variable in shards has none: a tape records the shards, whose gradients
are joined.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdist import _tf
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.saveable import is_exporting
from tfdist.variables.variable import ParameterServerVariable


def sparse_read(variable: keras.Variable) -> Callable[..., tf.Tensor]:
    """Returns the lookup of single rows.

    `tf.gather` looks for a method of this name. With it, an embedding moves only the
    rows that it looks up; without it, the whole table.

    Raises:
        AttributeError: If the variable does not live on a ps.
    """
    value = _tf.value_of(variable)
    if not isinstance(value, ParameterServerVariable | PartitionedVariable):
        # `tf.gather` falls back on reading the whole tensor at an AttributeError only.
        raise AttributeError("sparse_read")
    return value.look_up


def beside_the_weight(
    variable: keras.Variable, constraint: Callable[[Any], tf.Tensor] | None
) -> Callable[[Any], tf.Tensor] | None:
    """Returns a Keras variable's constraint, computed on the weight's device.

    On a worker, the weight would travel there and back. Meanwhile other workers would
    project it too, and the sum of their corrections would overshoot. A weight in shards
    is projected on the ps of the first, to which the others travel.
    """
    value = _tf.value_of(variable)
    on_ps = isinstance(value, ParameterServerVariable | PartitionedVariable)
    if constraint is None or not on_ps or tf.executing_eagerly():
        return constraint

    def project(weight: Any) -> tf.Tensor:
        with tf.device(value.device):
            return constraint(weight)

    return project


def specialize(variable: keras.Variable) -> None:
    """Turns a Keras variable with a sharded value into a `PartitionedKerasVariable`."""
    if isinstance(_tf.value_of(variable), PartitionedVariable):
        # Keras has constructed the object before the strategy decides on shards, so the
        # class cannot be chosen earlier.
        variable.__class__ = PartitionedKerasVariable


class PartitionedKerasVariable(keras.Variable):
    """A Keras variable with a sharded value.

    TensorFlow's checkpoint finds the slices to save through the variable's class only.
    """

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        return {} if is_exporting() else self._value.factories()

    def assign(self, value: Any) -> Any:
        """Sets the value; that of a growing table's slot by the ids of its rows."""
        if self._value.growth is None:
            return super().assign(value)
        return self._value.growth.assign_slot(self._value, value)

    # `tf.saved_model.save` traces functions that read the shards, and saves those.
    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            shards = enumerate(self._value.shards)
            children |= {f"shard_{i}": shard for i, shard in shards}
        return children

    # Keras's method copies one `tf.Variable`, and there is none: each shard exports
    # itself.
    def _export_to_saved_model_graph(
        self, *args: object, **kwargs: object
    ) -> list[Any]:
        return []

    # Keras's method asks the value, which is not a TensorFlow variable.
    def _write_object_proto(self, proto: Any, options: Any) -> None:
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        return np.asarray(self._value, dtype=dtype)


def with_shards(sources: Any) -> Any:
    """Returns a structure with the tuple of shards for each variable in shards."""
    return tf.nest.map_structure(lambda each: _shards_of(each) or each, sources)


def gradient_by_shards(
    tape_gradient: Callable[..., Any], target: Any, sources: Any, *options: Any
) -> Any:
    """Returns the result of `tf.GradientTape.gradient` for sources in shards.

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
