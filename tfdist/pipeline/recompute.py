"""Computing a forward task again: with the same random numbers, and without side effects."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.keras.computation import computing
from tfdist.keras.plain_computation import PlainComputation

Draws = list[Any]
"""The seeds that a forward task has drawn, in their order."""


# Odd, so that replicas have seeds of their own, whatever the first one is.
_BETWEEN_REPLICAS = 0x9E3779B1


class _Drawing(PlainComputation):
    def __init__(self, draws: Draws, replica: int) -> None:
        self._draws, self._replica = draws, replica

    def next_seed(self, keras_next: Callable[[], Any]) -> Any:
        """Returns the next seed of a replica, and keeps it."""
        seed = tf.convert_to_tensor(keras_next())
        if self._replica:
            other = [self._replica * _BETWEEN_REPLICAS % 2**31, 0]
            seed += tf.constant(other, seed.dtype)
        self._draws.append(seed)
        return seed


class _DrawingAgain(PlainComputation):
    def __init__(self, draws: Draws) -> None:
        self._draws = iter(draws)

    def next_seed(self, keras_next: Callable[[], Any]) -> Any:
        """Returns the seed that was drawn before."""
        return next(self._draws)

    def assign(self, variable: Any, value: Any) -> Any:
        """Leaves a variable as the first computation has set it."""
        return _tf.value_of(variable)

    def assign_add(
        self, keras_add: Callable[..., Any], variable: Any, value: Any
    ) -> Any:
        """Adds nothing: the first computation has."""
        return variable


def drawing(draws: Draws, replica: int) -> contextlib.AbstractContextManager[None]:
    """Keeps the seeds that are drawn in this context; each replica has its own."""
    return computing(_Drawing(draws, replica))


def drawing_again(draws: Draws) -> contextlib.AbstractContextManager[None]:
    """Draws seeds that were kept, and leaves Keras variables as they are."""
    return computing(_DrawingAgain(draws))
