"""The graph of layers of a functional Keras model, and what its layers keep of a call."""

from collections.abc import Iterator
from typing import Any

import keras
from keras.src.models.functional import Functional, operation_fn


def functional_of(model: keras.Model) -> Any:
    """Returns the functional model that a model calls, or None if its graph is unknown."""
    if isinstance(model, keras.Sequential):
        has_own_call = type(model).call is not keras.Sequential.call
        return None if has_own_call else model._functional
    is_functional = isinstance(model, keras.Function)
    return model if is_functional and _calls_its_graph(model) else None


def _calls_its_graph(model: keras.Model) -> bool:
    return getattr(type(model), "call", None) is Functional.call


def flat_inputs(functional: Any, x: Any) -> list[Any]:
    """Returns the inputs of a call as the model's graph takes them."""
    return list(functional._standardize_inputs(x))


def nodes_of(functional: Any) -> Iterator[Any]:
    """Yields the calls of layers of a model, each after those whose results it takes."""
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if node.operation and not node.is_input:
                yield node


def call_node(node: Any, values: dict[int, Any], training: bool) -> list[Any]:
    """Calls the layer of one of `nodes_of`, and returns its outputs.

    `values` are those of symbolic tensors, by identity.
    """
    args, kwargs = node.arguments.fill_in(values)
    outputs = operation_fn(node.operation, training=training)(*args, **kwargs)
    return list(keras.tree.flatten(outputs))


def losses_of_call(operation: Any) -> list[Any]:
    """Returns what an operation and its sublayers passed to `add_loss` in the last call."""
    if not isinstance(operation, keras.Layer):
        return []
    return [loss for layer in operation._flatten_layers() for loss in layer._losses]


def set_value(variable: keras.Variable, value: Any) -> None:
    """Replaces what holds a Keras variable's value."""
    variable._value = value


def compiled_loss(model: keras.Model) -> Any:
    """Returns what computes the compiled loss of a model, or None without one."""
    return model._compile_loss


def count_loss(model: keras.Model, loss: Any, rows: int) -> None:
    """Counts the loss of a batch in the model's mean of losses."""
    model._loss_tracker.update_state(loss, sample_weight=rows)


def renew_index(optimizer: keras.optimizers.Optimizer) -> None:
    """Has an optimizer know its weights again after `set_value` of one of them."""
    weights = optimizer._trainable_variables
    index = {optimizer._var_key(each): at for at, each in enumerate(weights)}
    optimizer._trainable_variables_indices = index
