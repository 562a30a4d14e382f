"""One table of the layers and optimizers that a strategy may reject.

A row is the same for all strategies. A strategy names the rows that it rejects, each with its
own reason, and its own error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.errors import Error

# Keras has it since 3.14.
_SCHEDULE_FREE: Any = getattr(keras.optimizers, "ScheduleFreeAdamW", ())


class ScopeError(Error, ValueError):
    """Part of a model was created outside of the strategy's scope."""


@dataclass(frozen=True)
class Row:
    """A property of a layer or an optimizer.

    Attributes:
        applies: Returns a true value if a layer or an optimizer has the property.
        words: The property, with `{0}` for the layer or the optimizer.
        remedy: What to do without it.
    """

    applies: Callable[[Any], object]
    words: str
    remedy: str


STATEFUL = Row(
    lambda layer: getattr(layer, "stateful", False),
    "has stateful=True",
    "Use stateful=False and longer sequences",
)
FLOAT8 = Row(
    # Keras sets this attribute on the scales of a float8 layer.
    lambda layer: any(
        getattr(each, "overwrite_with_gradient", False) for each in layer.variables
    ),
    "computes in float8",
    "Use the dtype policy mixed_bfloat16",
)
SPECTRAL = Row(
    lambda layer: (
        isinstance(layer, keras.layers.SpectralNormalization) and layer.trainable
    ),
    "is a SpectralNormalization, which rescales its kernel in each step",
    "Remove it, or use a weight constraint such as keras.constraints.MaxNorm",
)
LOSS_SCALE = Row(
    lambda optimizer: isinstance(optimizer, keras.optimizers.LossScaleOptimizer),
    "adapts its loss scale to the gradients of the last steps",
    "Train in mixed_bfloat16, which needs no loss scale, instead of mixed_float16",
)
ACCUMULATION = Row(
    lambda optimizer: optimizer.gradient_accumulation_steps,
    "has gradient_accumulation_steps={0.gradient_accumulation_steps}",
    "Use a larger batch or a lower learning rate",
)
GLOBAL_NORM = Row(
    lambda optimizer: optimizer.global_clipnorm,
    "has global_clipnorm={0.global_clipnorm}, the norm of all gradients of a batch",
    "Use clipnorm, which is by weight",
)
OVERWRITE = Row(
    lambda optimizer: optimizer.use_ema and optimizer.ema_overwrite_frequency,
    "has ema_overwrite_frequency={0.ema_overwrite_frequency}",
    "Set it to None, so that fit writes the averages to the model when it ends",
)
SCHEDULE_FREE = Row(
    lambda optimizer: isinstance(optimizer, _SCHEDULE_FREE),
    "computes its iterate from two variables",
    "Use AdamW",
)


def check(
    subject: keras.Layer | keras.optimizers.Optimizer,
    reasons: Mapping[Row, str],
    error: type[Error],
) -> None:
    """Checks that no row applies to a layer or an optimizer.

    Args:
        subject: The layer or the optimizer.
        reasons: The rejected rows, each with its reason.
        error: The strategy's own error.
    """
    name = f"the optimizer {type(subject).__name__}"
    if isinstance(subject, keras.Layer):
        name = f"layer {subject.name!r}"
    for row, reason in reasons.items():
        if row.applies(subject):
            raise error(f"{name} {row.words.format(subject)}: {reason}. {row.remedy}")


def check_belongs(
    optimizer: keras.optimizers.Optimizer | None,
    strategy: tf.distribute.Strategy,
    error: type[Error],
) -> None:
    """Checks that an optimizer, if there is one, was created in a strategy's scope."""
    if optimizer is not None and optimizer._distribution_strategy is not strategy:
        raise error(
            f"the optimizer {type(optimizer).__name__} was created outside of the "
            "strategy's scope. Create it, and call model.compile(...), inside `with "
            "strategy.scope():`"
        )
