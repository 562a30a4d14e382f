"""Checks of a model and clients' examples before a graph is made of them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.research.federated.averaging import FederatedAveraging


def check_model(model: keras.Model) -> None:
    """Checks that clients can train a model: built, compiled, without a step of its own."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model; received {type(model).__name__}")
    if model.built and not model.weights:
        raise ValueError(
            f"the model {model.name!r} has no weights: there is nothing to train"
        )
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} must be built: give it a keras.Input, or call it once"
        )
    if not model.compiled or model.optimizer is None:
        raise ValueError(
            f"the model {model.name!r} must be compiled: call model.compile(optimizer, "
            "loss), which clients train with"
        )
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which clients do not "
            "call: they train with the loss and the optimizer of compile(). Override "
            "compute_loss() instead"
        )


def fresh_optimizer(model: keras.Model, averaging: FederatedAveraging) -> Any:
    """Returns an optimizer like the model's, with no steps behind it.

    A schedule of its own besides the decay per round is refused, and so is a moving average
    of the weights.
    """
    own = model.optimizer
    has_schedule = not isinstance(own.learning_rate, keras.Variable)
    if averaging.learning_rate_decay != 1 and has_schedule:
        raise ValueError(
            "learning_rate_decay multiplies a learning rate that is a number; received "
            f"{own.name} with a schedule. Use one of both"
        )
    if own.use_ema:
        raise ValueError(
            f"clients have no use for the moving average of {own.name}: each begins a "
            "round with a fresh optimizer. Compile the model with use_ema=False"
        )
    optimizer = type(own).from_config(own.get_config())
    optimizer.build(model.trainable_variables)
    return optimizer


def count(examples: Nest, client: int) -> int:
    """Returns how many examples there are, the same in each array."""
    if not isinstance(examples, tuple) or not 2 <= len(examples) <= 3:
        raise ValueError(
            f"the examples of client {client} must be (x, y) or (x, y, sample_weight); "
            f"received {type(examples).__name__}"
        )
    sizes = {len(each) for each in tf.nest.flatten(examples)}
    if len(sizes) != 1:
        raise ValueError(
            f"the arrays of client {client} have as many rows each; received "
            f"{sorted(sizes)}"
        )
    return sizes.pop()


def specs_of(examples: Nest) -> Nest:
    """Returns the specs of examples, with any number of rows."""
    return tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), examples
    )


def kind_of(examples: Nest) -> list[tuple[Any, ...]]:
    """Returns the common kind of all clients' examples: shapes of one, and dtypes."""
    return [
        (tuple(each.shape[1:]), tf.as_dtype(each.dtype).name)
        for each in tf.nest.flatten(examples)
    ]


def check_kind(found: Any, expected: Any) -> None:
    """Checks that examples are like those of other clients."""
    if found != expected:
        raise ValueError(
            "all clients' examples have the same shapes and dtypes, as one model needs "
            f"them: {expected}; received {found}"
        )


def arrays_of(data: Nest, client: int) -> tuple[Any, ...]:
    """Returns a client's examples as arrays: given as such, or as a batched dataset."""
    if isinstance(data, tf.data.Dataset):
        batches = [tf.nest.map_structure(np.asarray, each) for each in data]
        if not batches:
            raise ValueError(
                f"client {client} has no examples: its dataset is empty. Leave it out"
            )
        data = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
    if isinstance(data, list):
        data = tuple(data)
    count(data, client)
    return tf.nest.map_structure(np.asarray, data)
