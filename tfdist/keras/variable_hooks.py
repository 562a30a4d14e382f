"""The patches of Keras variables: where they live, and how steps and optimizers write them."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.patching import patch
from tfdist._support.types import Gradient
from tfdist.keras.computation import current_computation
from tfdist.keras.optimizers import is_by_element
from tfdist.keras.step_writes import note_write
from tfdist.variables import fused_update, keras_variable
from tfdist.variables.creation import creating
from tfdist.variables.fused_kernels import RULES
from tfdist.variables.partitioned import PartitionedVariable


def install() -> None:
    """Patches Keras variables so that they can live on a ps or on replicas."""
    owner = keras.Variable
    owner.sparse_read = property(keras_variable.sparse_read)
    owner.constraint = _constraint_beside_the_weight(owner.constraint)
    patch(owner, "_initialize", _with_path_known)
    patch(owner, "_initialize_with_initializer", _with_initializer_known)
    owner._direct_assign = _assigning_by_computation(owner._direct_assign)
    owner.assign_add = _adding_by_computation(owner.assign_add)
    patch(owner, "_restore_from_tensors", _restoring_copies)
    patch(owner, "__int__", _converting_a_copy(int))
    patch(owner, "__float__", _converting_a_copy(float))
    _install_updates()


def _install_updates() -> None:
    """Patches how optimizers update variables on a ps, and no others.

    Where there is a fused kernel, it updates a weight: not in a class derived from Keras's.
    A weight in shards is updated shard by shard if its optimizer allows that.
    """
    patch(keras.optimizers.Optimizer, "build", _noting_how_to_update)
    for name in RULES:
        owner = getattr(keras.optimizers, name)
        keras_method = vars(owner).get("update_step")
        # `AdamW` inherits that of `Adam`. What a program has put there stays.
        if keras_method is not None and keras_method.__module__.startswith("keras."):
            patch(owner, "update_step", _fused_where_possible)


def _constraint_beside_the_weight(keras_constraint: Any) -> property:
    def constraint(variable: keras.Variable) -> Callable[[tf.Tensor], tf.Tensor] | None:
        given = keras_constraint.fget(variable)
        return keras_variable.beside_the_weight(variable, given)

    return property(constraint, keras_constraint.fset)


def _with_path_known(initialize: Callable[..., None]) -> Callable[..., None]:
    def method(variable: Any, value: Any) -> None:
        # A variable creator is told neither the path nor the initializer, and placement
        # needs both. They are passed around TensorFlow.
        with creating(path=variable.path):
            initialize(variable, value)
        keras_variable.specialize(variable)

    return method


def _with_initializer_known(initialize: Callable[..., None]) -> Callable[..., None]:
    def method(variable: Any, initializer: Any) -> None:
        with creating(initializer=initializer):
            initialize(variable, initializer)

    return method


def _assigning_by_computation(keras_assign: Callable[..., None]) -> Callable[..., None]:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(keras_assign)
    def direct_assign(self: keras.Variable, value: tf.Tensor) -> None:
        note_write(self)
        if (computation := current_computation()) is not None:
            value = computation.assign(self, value)
        keras_assign(self, value)

    return direct_assign


def _adding_by_computation(keras_add: Callable[..., Any]) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(keras_add)
    def assign_add(self: keras.Variable, value: tf.Tensor) -> object:
        note_write(self)
        if (computation := current_computation()) is not None:
            return computation.assign_add(keras_add, self, value)
        return keras_add(self, value)

    return assign_add


def _restoring_copies(keras_restore: Callable[..., Any]) -> Callable[..., Any]:
    def restore(self: Any, restored: Any) -> Any:
        # TensorFlow restores copies on several tasks in a graph, where values have no
        # static shape, and Keras refuses to assign a value of unknown shape.
        if isinstance(self._value, tf.distribute.DistributedValues):
            restored = {
                name: tf.ensure_shape(value, self.shape)
                for name, value in restored.items()
            }
        return keras_restore(self, restored)

    return restore


def _converting_a_copy(number: Callable[[Any], Any]) -> Callable[..., Any]:
    """Converts a scalar with several copies, which TensorFlow's conversion cannot."""

    def make(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def method(self: Any) -> Any:
            is_mirrored = isinstance(self._value, tf.distribute.DistributedValues)
            of_copy = is_mirrored and not self.ndim
            return number(self.numpy()) if of_copy else convert(self)

        return method

    return make


def _noting_how_to_update(keras_build: Callable[..., None]) -> Callable[..., None]:
    def build(self: Any, variables: Any) -> None:
        for each in variables:
            value = _tf.value_of(each) if isinstance(each, keras.Variable) else each
            if isinstance(value, PartitionedVariable):
                value.updated_whole = not is_by_element(self)
        # A wrapper, such as `LossScaleOptimizer`, builds the optimizer that it wraps, which
        # then has the last word.
        keras_build(self, variables)

    return build


def _fused_where_possible(keras_method: Callable[..., None]) -> Callable[..., None]:
    def update_step(
        self: keras.Optimizer,
        gradient: Gradient,
        variable: keras.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        is_keras_own = type(self) is getattr(
            keras.optimizers, type(self).__name__, None
        )
        if not is_keras_own or not fused_update.update(
            self, gradient, variable, learning_rate
        ):
            keras_method(self, gradient, variable, learning_rate)

    return update_step
