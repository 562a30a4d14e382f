"""A computation that changes nothing: what the others differ from."""

from collections.abc import Callable, Sequence
from typing import Any


class PlainComputation:
    """A `tfdist.keras.computation.Computation` in which Keras does what it always does.

    The others override what depends on their strategy. With it alone, Keras takes
    gradients as they are, and makes no merge call, which cannot be within a condition.
    """

    def gradient(
        self,
        tape_gradient: Callable[..., Any],
        target: Any,
        sources: Any,
        output_gradients: Any,
        unconnected: Any,
    ) -> Any:
        """Returns the gradient as it is."""
        return tape_gradient(target, sources, output_gradients, unconnected)

    def apply(
        self, keras_apply: Callable[..., Any], optimizer: Any, grads: Any, given: Any
    ) -> Any:
        """Applies the gradients as they are."""
        return keras_apply(optimizer, grads, given)

    def to_apply(self, pairs: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        """Returns the gradients as they are."""
        return pairs

    def assign(self, variable: Any, value: Any) -> Any:
        """Returns the value as it is."""
        return value

    def assign_add(
        self, keras_add: Callable[..., Any], variable: Any, value: Any
    ) -> Any:
        """Adds as Keras does."""
        return keras_add(variable, value)

    def next_seed(self, keras_next: Callable[[], Any]) -> Any:
        """Returns the next seed, the same for whoever has the same state."""
        return keras_next()

    def mask_weights(
        self,
        keras_mask: Callable[..., Any],
        sample_weight: Any,
        mask: Any,
        dtype: Any,
        reduction: Any,
    ) -> Any:
        """Returns Keras's weights, which divide by the unmasked steps."""
        return keras_mask(sample_weight, mask, dtype, reduction)

    def loss(self, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Returns the loss of the examples that are here."""
        return loss(y_true, y_pred, sample_weight)

    def update_metric(
        self, metric: Any, y_true: Any, y_pred: Any, sample_weight: Any
    ) -> None:
        """Updates the metric from the examples that are here."""
        metric.update_state(y_true, y_pred, sample_weight)
