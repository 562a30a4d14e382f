"""Models, and how they train in a pipeline and in one process, for tests of pipelines."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import _tf
from tfdist.research import split_layers
from tfdist.research.model_parallel.splitting.nodes import pieces_of

DEVICES = 4
ROWS = 22
"""Of which no number of microbatches here is a divisor: the batches are of 16 and 6."""


@pytest.fixture(scope="module", autouse=True)
def logical_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    )


def chain():
    """A Sequential MLP whose weights are regularized."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(12, "relu", kernel_regularizer="l2"),
            layers.Dense(12, "tanh", activity_regularizer="l2"),
            layers.Dense(12, "relu"),
            layers.Dense(3, bias_regularizer="l1"),
        ]
    )


def with_skips():
    """A CNN, one of whose skips passes over a whole stage."""
    layers = keras.layers
    image = keras.Input((6, 6, 1))
    x = first = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = second = layers.add([x, first])
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x + second)
    x = layers.concatenate([x, first])
    return keras.Model(image, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def transformer():
    """Two blocks of attention on embedded words."""
    layers = keras.layers
    words = keras.Input((5,), dtype="int32")
    x = layers.Embedding(11, 8)(words)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
        x = layers.LayerNormalization()(
            x + layers.Dense(8)(layers.Dense(16, "gelu")(x))
        )
    return keras.Model(words, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def batch_of(model):
    generator = np.random.default_rng(3)
    shape = (ROWS, *model.input_shape[1:])
    if model.inputs[0].dtype == "int32":
        # Ids below 0 are rows from a table's end.
        x = generator.integers(-2, 11, shape).astype("int32")
    else:
        x = generator.normal(size=shape).astype("float32")
    return x, generator.normal(size=(ROWS, 3)).astype("float32")


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5),
    "adam": lambda: keras.optimizers.Adam(0.01, weight_decay=0.01, use_ema=True),
}


def train(make, strategy=None, optimizer="sgd", split=None):
    """Trains a model for some epochs; with a strategy, in its scope."""
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make() if split is None else split_layers(make(), split)
        model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
    x, y = batch_of(model)
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return model, history.history


def weights_of(model):
    """The weights of a model, in one piece."""
    return [
        weight
        for each in model.layers
        for weight in (each.whole_weights() if pieces_of(each) else each.get_weights())
    ]


def assert_close(ones, others, rtol, atol=0):
    """Checks arrays pair by pair."""
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def assert_alike(ours, theirs, tolerance=1e-4):
    """Equal in weights, history and, where no layer is split, in the slots."""
    (model, history), (plain, expected) = ours, theirs
    assert_close(weights_of(model), weights_of(plain), rtol=1e-4, atol=tolerance)
    if not any(map(pieces_of, model.layers)):
        slots = zip(model.optimizer.variables, plain.optimizer.variables, strict=True)
        for one, other in slots:
            np.testing.assert_allclose(
                one.numpy(), other.numpy(), rtol=1e-3, atol=tolerance
            )
    assert history.keys() == expected.keys()
    for name in history:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-4, atol=1e-6)


def graph_of_step(monkeypatch, make, strategy, optimizer="sgd", split=None):
    """Trains, and returns the model and the graph of its first step."""
    functions, traced = [], _tf.function

    def noted(*args):
        functions.append(traced(*args))
        return functions[-1]

    with monkeypatch.context() as patch:
        patch.setattr(_tf, "function", noted)
        model, _ = train(make, strategy, optimizer, split)
    return model, functions[0].get_concrete_function().graph
