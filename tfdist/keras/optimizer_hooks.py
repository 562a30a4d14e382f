"""The patch of Keras's optimizers: one operation for an update, where there is one."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tfdist.variables import fused_update
from tfdist.variables.fused_kernels import RULES


def install() -> None:
    """Patches `update_step` of the optimizers for which there are fused kernels.

    The patch acts on a variable on a ps only, and on no class derived from Keras's.
    """
    for name in RULES:
        owner = getattr(keras.optimizers, name)
        keras_method = vars(owner).get("update_step")
        # `AdamW` inherits that of `Adam`. What a program has put there stays.
        if keras_method is not None and keras_method.__module__.startswith("keras."):
            owner.update_step = _fused_where_possible(keras_method)


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
