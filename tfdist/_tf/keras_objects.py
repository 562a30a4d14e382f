"""Internal state of Keras's objects, and the seeds of Keras and TensorFlow."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional, operation_fn
from tensorflow.python.eager import context

from tfdist._support.types import Nest


def metric_function(
    metric: keras.metrics.MeanMetricWrapper,
) -> Callable[..., tf.Tensor]:
    """Returns the function whose mean a metric is."""
    return metric._fn


def function_options(loss_or_metric: Any) -> dict[str, Any]:
    """Returns the options of the function that a loss or metric wraps, if it does."""
    return getattr(loss_or_metric, "_fn_kwargs", {})


def variables_to_initialize() -> list[tf.Variable]:
    """Returns the Keras variables that are still to be created."""
    return list(global_state.get_global_attribute("uninitialized_variables") or ())


@contextlib.contextmanager
def creating_now() -> Iterator[None]:
    """Has Keras create variables at once, also while it traces a model to build it."""
    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        with tf.init_scope():
            yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def value_of(variable: keras.Variable) -> Any:
    """Returns the holder of a Keras variable's value, not cast to any layer's dtype."""
    return variable._value


def trainable_variables_of(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that an optimizer was built for, in its order."""
    return list(optimizer._trainable_variables)


@contextlib.contextmanager
def keeping_losses(model: keras.Model) -> Iterator[None]:
    """Restores at its end the losses that layers had added at its beginning."""
    layers = model._flatten_layers()
    kept = [(each, each._losses[:], set(each._loss_ids)) for each in layers]
    try:
        yield
    finally:
        for layer, losses, ids in kept:
            layer._losses[:] = losses
            layer._loss_ids.clear()
            layer._loss_ids.update(ids)


def flatten_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model's layers, those inside of layers too."""
    return list(model._flatten_layers(include_self=False))


@contextlib.contextmanager
def global_seed_generator_kept() -> Iterator[None]:
    """Leaves Keras's global seed generator as it was, absent if it was absent."""
    name = "global_seed_generator"
    kept = global_state.get_global_attribute(name)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, kept)


def global_seed_generator() -> Any:
    """Returns the generator of `keras.random` without a seed, or None."""
    return global_state.get_global_attribute("global_seed_generator")


def set_global_seed_generator(generator: Any) -> None:
    """Sets what `keras.random` draws from without a seed; None to have one made."""
    global_state.set_global_attribute("global_seed_generator", generator)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Gives operations made meanwhile seeds that follow from this one."""
    eager = context.context()
    kept = eager._seed, getattr(eager, "_rng", None)
    # TensorFlow's own setter also empties the cache of kernels, and waits, with the
    # lock of the interpreter, for remote tasks that may be gone.
    eager._seed, eager._rng = seed, random.Random(seed)
    try:
        yield
    finally:
        eager._seed, eager._rng = kept


def seeding() -> tuple[int | None, Any]:
    """Returns TensorFlow's global seed, and an object that `tf.random.set_seed` renews."""
    eager = context.context()
    return eager._seed, getattr(eager, "_rng", None)


def functional_of(model: keras.Model) -> keras.Model:
    """Returns the functional model that a model calls, or None if its graph is unknown."""
    if isinstance(model, keras.Sequential):
        has_own_call = type(model).call is not keras.Sequential.call
        return None if has_own_call else model._functional
    is_functional = isinstance(model, keras.Function)
    return model if is_functional and _calls_its_graph(model) else None


def _calls_its_graph(model: keras.Model) -> bool:
    return getattr(type(model), "call", None) is Functional.call


def flat_inputs(functional: Any, x: Nest) -> list[tf.Tensor]:
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


def losses_of_call(operation: Any) -> list[tf.Tensor]:
    """Returns the losses that an operation and its sublayers added in the last call."""
    if not isinstance(operation, keras.Layer):
        return []
    return [loss for layer in operation._flatten_layers() for loss in layer._losses]


def set_value(variable: keras.Variable, value: tf.Tensor) -> None:
    """Replaces the holder of a Keras variable's value."""
    variable._value = value


def compiled_loss(model: keras.Model) -> keras.Loss:
    """Returns the compiled loss of a model, or None without one."""
    return model._compile_loss


def count_loss(model: keras.Model, loss: tf.Tensor, rows: int) -> None:
    """Counts the loss of a batch in the model's mean of losses."""
    model._loss_tracker.update_state(loss, sample_weight=rows)


def renew_index(optimizer: keras.optimizers.Optimizer) -> None:
    """Has an optimizer know its weights again after `set_value` of one of them."""
    weights = optimizer._trainable_variables
    index = {optimizer._var_key(each): at for at, each in enumerate(weights)}
    optimizer._trainable_variables_indices = index
