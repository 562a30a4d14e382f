"""Checks for models that cannot train correctly on parts of a batch.

They raise before the first step, with the reason and what to do instead.
"""

from typing import Any

import keras

from tfdist import _tf
from tfdist.keras import captures


class ScopeError(ValueError):
    """Part of a model was created outside of the strategy's scope."""


class SynchronousTrainingError(ValueError):
    """The model needs something that replicas with parts of a batch cannot do."""


def check_optimizer(model: Any) -> None:
    """Checks that a model's optimizer belongs to its strategy.

    Raises:
        ScopeError: If it was created outside of the scope.
    """
    optimizer, strategy = model.optimizer, model.distribute_strategy
    if optimizer is not None and optimizer._distribution_strategy is not strategy:
        raise ScopeError(
            f"the optimizer {type(optimizer).__name__} was created outside of the "
            "strategy's scope. Create it, and call model.compile(...), inside `with "
            "strategy.scope():`"
        )


def check_model(model: Any) -> None:
    """Checks a model before it is trained.

    Raises:
        SynchronousTrainingError: If it has a layer that needs all examples of a batch.
    """
    for layer in _tf.flatten_layers(model):
        _check_layer(layer)


def _check_layer(layer: keras.Layer) -> None:
    if getattr(layer, "stateful", False):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} has stateful=True: its state has one row per "
            "example of a batch, but each replica has only some of the examples. Use "
            "stateful=False and longer sequences"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in layer.variables):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} computes in float8, whose scales depend on all "
            "examples, but each replica has only some of them. Use the dtype policy "
            "mixed_bfloat16"
        )


def check_copies(graph: Any, model: Any) -> None:
    """Checks that a step uses only variables with a copy on every replica.

    A variable of the tracing process has one copy, to which the updates of all replicas
    would be applied.

    Args:
        graph: The graph in which the step was traced.
        model: The Keras model, to name its variables.

    Raises:
        ScopeError: If the step uses another variable.
    """
    variables, _ = captures.resources_on_chief(graph, model)
    if variables:
        raise ScopeError(
            f"created outside of the strategy's scope: {', '.join(variables)}. Such a "
            "variable has no copies on the workers. Create the model, its metrics and "
            "its optimizer inside `with strategy.scope():`"
        )
