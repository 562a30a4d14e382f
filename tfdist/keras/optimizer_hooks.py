"""The patches of Keras's optimizers: how they update what is on a ps."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tfdist import _tf
from tfdist.variables import fused_update
from tfdist.variables.fused_kernels import RULES
from tfdist.variables.partitioned import PartitionedVariable

_BY_ELEMENT = frozenset({*RULES, "Lion", "Nadam", "ScheduleFreeAdamW"})
"""Those of Keras that update each element by its own gradient and slots alone.

Others, such as `Lamb`, `Muon` and whatever a user has written, may look at a norm, a mean
or a root of the whole weight, which that of a shard is not.
"""


def install() -> None:
    """Patches how optimizers update variables on a ps, and no others.

    Where there is a fused kernel, it updates a weight: not in a class derived from Keras's.
    A weight in shards is updated shard by shard if its optimizer allows that.
    """
    optimizer = keras.optimizers.Optimizer
    optimizer.build = _noting_how_to_update(optimizer.build)
    for name in RULES:
        owner = getattr(keras.optimizers, name)
        keras_method = vars(owner).get("update_step")
        # `AdamW` inherits that of `Adam`. What a program has put there stays.
        if keras_method is not None and keras_method.__module__.startswith("keras."):
            owner.update_step = _fused_where_possible(keras_method)


def _noting_how_to_update(keras_build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(keras_build)
    def build(self: Any, variables: Any) -> None:
        for each in variables:
            value = _tf.value_of(each) if isinstance(each, keras.Variable) else each
            if isinstance(value, PartitionedVariable):
                value.updated_whole = not is_by_element(self)
        # A wrapper, such as `LossScaleOptimizer`, builds the optimizer that it wraps, which
        # then has the last word.
        keras_build(self, variables)

    return build


def is_by_element(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer updates each element of a weight by itself."""
    if "update_step" in vars(optimizer):
        return False
    owner = next(c for c in type(optimizer).__mro__ if "update_step" in vars(c))
    # A wrapper has no step of its own.
    is_wrapper = owner in keras.optimizers.Optimizer.__mro__
    is_keras_own = getattr(keras.optimizers, owner.__name__, None) is owner
    return is_wrapper or (is_keras_own and owner.__name__ in _BY_ELEMENT)


def _fused_where_possible(keras_method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(keras_method)
    def update_step(
        self: Any, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        is_keras_own = type(self) is getattr(
            keras.optimizers, type(self).__name__, None
        )
        if not is_keras_own or not fused_update.update(
            self, gradient, variable, learning_rate
        ):
            keras_method(self, gradient, variable, learning_rate)

    return update_step
