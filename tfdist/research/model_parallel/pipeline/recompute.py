"""Computing a forward task again: with the same random numbers, and without side effects."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.keras.computation import Computation
from tfdist.research.model_parallel.pipeline.errors import PipelineError

Draws = list[Any]
"""The seeds that a forward task has drawn, in their order."""

Found = dict[int, tuple[Any, Any]]
"""Variables that a task assigns, and their values before it, by identity."""


# Odd, so that replicas have different seeds for any first one.
_BETWEEN_REPLICAS = 0x9E3779B1


class Drawing(Computation):
    """Keeps seeds and variables as it finds them; each replica has its own seeds."""

    def __init__(self, draws: Draws, replica: int, found: Found) -> None:
        self._draws, self._replica, self._found = draws, replica, found

    def assign(self, variable: keras.Variable, value: tf.Tensor) -> Nest:
        """Keeps the value of a variable before its first assignment."""
        refuse_weight(variable)
        if id(variable) not in self._found:
            self._found[id(variable)] = variable, tf.identity(variable.value)
        return value

    def assign_add(
        self, keras_add: Callable[..., Any], variable: keras.Variable, value: tf.Tensor
    ) -> Nest:
        """Keeps the value of a variable before its first assignment."""
        self.assign(variable, value)
        return keras_add(variable, value)

    def next_seed(self, keras_next: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns the next seed of a replica, and keeps it."""
        seed = tf.convert_to_tensor(keras_next())
        # The first replica draws as a model without replicas does.
        if self._replica:
            other = [self._replica * _BETWEEN_REPLICAS % 2**31, 0]
            seed += tf.constant(other, seed.dtype)
        self._draws.append(seed)
        return seed


class DrawingAgain(Computation):
    """Draws the seeds that were kept."""

    def __init__(self, draws: Draws) -> None:
        self._draws = iter(draws)

    def next_seed(self, keras_next: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns the seed that was drawn before."""
        return next(self._draws)


def refuse_weight(variable: keras.Variable) -> None:
    """Refuses a trainable weight that a layer assigns while it computes."""
    if variable.trainable:
        raise PipelineError(
            f"a layer assigns its trainable weight {variable.path} while it computes, "
            "which replicas and recompute would take the gradient of at another value. "
            "Use replicas=1 and recompute=False"
        )


@contextlib.contextmanager
def refusing_unrepeatable() -> Iterator[None]:
    """Refuses operations that computing again would not repeat, or would do twice.

    Draws and assignments of layers through Keras add none of them here.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    for each in graph.get_operations()[before:]:
        if each.type.startswith(("Random", "TruncatedNormal", "Multinomial", "Assign")):
            raise PipelineError(
                f"recompute and max_staleness compute layers twice, but {each.name!r} "
                f"({each.type}) draws other numbers the second time, or assigns again. Draw "
                "by keras.random and assign variables of add_weight, or leave recompute out"
            )
