"""What cannot be right where each replica computes a part of the batch.

Each is refused before the first step, with the reason and what to do instead.
"""

import logging
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras import captures
from tfdist.liveness.step_error import user_line

_log = logging.getLogger("tfdist")


class ScopeError(ValueError):
    """Part of a model was created outside of the strategy's scope."""


class SynchronousTrainingError(ValueError):
    """The model asks for something that replicas with parts of a batch cannot do."""


def check_optimizer(model: Any) -> None:
    """Checks that a model's optimizer belongs to its strategy.

    Raises:
        ScopeError: If it was made outside of the scope.
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
        SynchronousTrainingError: If it has a layer that computes with all examples.
    """
    for layer in _tf.flatten_layers(model):
        _check_layer(layer)


def _check_layer(layer: keras.Layer) -> None:
    if getattr(layer, "stateful", False):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} has stateful=True: its state has a row for each "
            "example of a batch, and each replica has a part of them. Use "
            "stateful=False, and longer sequences"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in layer.variables):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} computes in float8, whose scales are found from all "
            "examples, and each replica has a part of them. Use the dtype policy "
            "mixed_bfloat16"
        )


def check_copies(graph: Any, model: Any) -> None:
    """Checks that the replicas' step uses no variable of the process that traces it.

    Such a variable has one copy, to which every replica's update would be applied.

    Args:
        graph: That the step was traced in.
        model: The Keras model, to name its variables.

    Raises:
        ScopeError: If it does.
    """
    variables, _ = captures.resources_on_chief(graph, model)
    if variables:
        raise ScopeError(
            f"created outside of the strategy's scope: {', '.join(variables)}. Such a "
            "variable has no copies on the workers. Create the model, its metrics and "
            "its optimizer inside `with strategy.scope():`"
        )


def warn_of_mixing(operations: Iterable[tf.Operation]) -> None:
    """Warns, once for each line, where a step computes with several examples at a time.

    A replica has a part of the batch, and so others than one process has.

    Args:
        operations: Of the step's graph, that the program has called for.
    """
    for op in operations:
        line = user_line(op) or f" ({op.name})"
        if line not in _warned:
            _warned.add(line)
            _log.warning(
                "%s%s computes with several examples of a batch in a way that is no sum "
                "or mean of what each gives. A replica does so with the examples that "
                "it has: the result differs from one process's",
                op.type,
                line,
            )


_warned: set[str] = set()
