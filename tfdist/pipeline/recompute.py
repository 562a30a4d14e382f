"""Computing a forward task again: with the same random numbers, and without side effects."""

import contextlib
from collections.abc import Callable
from typing import Any

from tfdist import _tf
from tfdist.keras.computation import computing
from tfdist.keras.plain_computation import PlainComputation

Draws = list[Any]
"""The seeds that a forward task has drawn, in their order."""


class _Drawing(PlainComputation):
    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def next_seed(self, keras_next: Callable[[], Any]) -> Any:
        """Returns the next seed, and keeps it."""
        seed = keras_next()
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


def drawing(draws: Draws) -> contextlib.AbstractContextManager[None]:
    """Keeps the seeds that are drawn in this context."""
    return computing(_Drawing(draws))


def drawing_again(draws: Draws) -> contextlib.AbstractContextManager[None]:
    """Draws seeds that were kept, and leaves Keras variables as they are."""
    return computing(_DrawingAgain(draws))
