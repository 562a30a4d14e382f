"""The computation of a step by several replicas together: gradients, seeds, losses, metrics.

If the replicas of a strategy compute parts of one step, some functions depend on all of
them. The strategy then makes a `Computation` current while its step is traced, which the
patches of `tfdist.keras.step_hooks` ask.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.context import setting
from tfdist._support.types import Gradient, Nest, Pairs

# Per thread: TensorFlow traces each replica in a separate thread, and each of them has
# a separate computation.
_current: ContextVar["Computation | None"] = ContextVar("computation", default=None)


class Computation:
    """One replica's part of a step that several replicas compute together.

    Each method receives the function that it replaces, and may call it. Here Keras does
    what it always does: it takes gradients as they are, and makes no merge call, which
    cannot be within a condition. Subclasses override what depends on their strategy.

    Attributes:
        applies_at_once: Whether an optimizer that consists of several applies all
            gradients in one call.
    """

    applies_at_once = False

    def gradient(self, tape_gradient: Callable[..., Any], *given: Nest) -> Any:
        """Returns the result of `tf.GradientTape.gradient(*given)`."""
        return tape_gradient(*given)

    def apply(
        self,
        keras_apply: Callable[..., Any],
        optimizer: keras.Optimizer,
        grads: Sequence[Gradient | None],
        given: Nest,
    ) -> Any:
        """Does what `optimizer.apply(grads, given)` should do; `given` may be None."""
        return keras_apply(optimizer, grads, given)

    def to_apply(self, pairs: Pairs) -> Pairs:
        """Returns the (gradient, variable) pairs to apply, after clipping."""
        return pairs

    def assign(self, variable: keras.Variable, value: tf.Tensor) -> Nest:
        """Returns the value to which a Keras variable is set in place of `value`."""
        return value

    def assign_add(
        self, keras_add: Callable[..., Any], variable: keras.Variable, value: tf.Tensor
    ) -> Nest:
        """Does what `variable.assign_add(value)` should do."""
        return keras_add(variable, value)

    def next_seed(self, keras_next: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns the next seed: another one for each replica that draws numbers of its own."""
        return keras_next()

    def mask_weights(
        self, weigh: Callable[[str], Nest], mask: tf.Tensor | None, by: str
    ) -> Nest:
        """Returns the sample weights of a loss whose predictions have a mask.

        Args:
            weigh: Returns Keras's weights for a reduction.
            mask: The mask, or None.
            by: The reduction of the loss.
        """
        return weigh(by)

    def loss(self, loss: Nest, y_true: Nest, y_pred: Nest, sample_weight: Nest) -> Nest:
        """Returns `loss(y_true, y_pred, sample_weight)` for a compiled loss."""
        return loss(y_true, y_pred, sample_weight)

    def update_metric(
        self, metric: keras.Metric, y_true: Nest, y_pred: Nest, sample_weight: Nest
    ) -> None:
        """Does what `metric.update_state(...)` of a compiled metric should do."""
        metric.update_state(y_true, y_pred, sample_weight)


def current_computation() -> Any:
    """Returns the current computation of this thread, or None."""
    return _current.get()


def computing(computation: Computation) -> AbstractContextManager[None]:
    """Makes a computation current in this thread."""
    return setting(_current, computation)
