"""The models of place.py, small enough to measure in a minute, and a step of each."""

import statistics
import time
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf
from keras import layers

REPEATS = 5


def chain(depth: int = 24, width: int = 512) -> keras.Model:
    """Equal dense layers, one after the other."""
    inputs = keras.Input((width,))
    x = inputs
    for at in range(depth):
        x = layers.Dense(width, activation="relu", name=f"dense_{at}")(x)
    return _compiled(keras.Model(inputs, layers.Dense(1, name="head")(x)))


def inception_v3() -> keras.Model:
    return _compiled(
        keras.applications.InceptionV3(weights=None, input_shape=(96, 96, 3))
    )


def resnet50() -> keras.Model:
    return _compiled(keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3)))


def nasnet_mobile() -> keras.Model:
    return _compiled(
        keras.applications.NASNetMobile(weights=None, input_shape=(96, 96, 3))
    )


def two_towers(rows: int = 20_000, width: int = 64) -> keras.Model:
    """A recommender: a tower of its own for users and for items, each of five features."""
    inputs, codes = [], []
    for side in ("user", "item"):
        features = []
        for at in range(5):
            ids = keras.Input((20,), dtype="int32", name=f"{side}_ids_{at}")
            found = layers.Embedding(rows, width, name=f"{side}_table_{at}")(ids)
            features.append(
                layers.GlobalAveragePooling1D(name=f"{side}_bag_{at}")(found)
            )
            inputs.append(ids)
        x = layers.Concatenate(name=f"{side}_features")(features)
        for units in (1024, 512, 128):
            x = layers.Dense(units, activation="relu", name=f"{side}_{units}")(x)
        codes.append(x)
    score = layers.Dot(1, name="score")(codes)
    return _compiled(keras.Model(inputs, score))


def transformer(depth: int = 4, width: int = 256, length: int = 64) -> keras.Model:
    """An encoder with its words, and a head."""
    words = keras.Input((length,), dtype="int32", name="words")
    x = layers.Embedding(10_000, width, name="table")(words)
    for at in range(depth):
        heads = layers.MultiHeadAttention(4, width // 4, name=f"attention_{at}")
        x = layers.LayerNormalization(name=f"norm_{at}a")(x + heads(x, x))
        hidden = layers.Dense(4 * width, activation="gelu", name=f"wide_{at}")(x)
        hidden = layers.Dense(width, name=f"narrow_{at}")(hidden)
        x = layers.LayerNormalization(name=f"norm_{at}b")(x + hidden)
    head = layers.Dense(2, name="head")(layers.GlobalAveragePooling1D(name="mean")(x))
    return _compiled(keras.Model(words, head))


MODELS: Mapping[str, tuple[Callable[[], keras.Model], int]] = {
    "chain": (chain, 256),
    "InceptionV3": (inception_v3, 8),
    "ResNet50": (resnet50, 8),
    "NASNetMobile": (nasnet_mobile, 8),
    "two towers": (two_towers, 256),
    "transformer": (transformer, 16),
}
"""How each model is built, and the number of examples of its step."""


class StepTime:
    """Forward and backward computation of a whole model in one function."""

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        self._inputs = [
            _values((batch_size, *e.shape[1:]), e.dtype) for e in model.inputs
        ]
        inputs = self._inputs if len(self._inputs) > 1 else self._inputs[0]
        weights = [each.value for each in model.trainable_weights]

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
            found = tape.gradient(outputs, weights)
            # A table's gradient is rows, not the table.
            return [getattr(e, "values", e) for e in found if e is not None]

        self._step = step
        step()

    def seconds(self) -> float:
        """Returns the median of a few steps."""
        found = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            self._step()
            found.append(time.perf_counter() - start)
        return statistics.median(found)


def _values(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    if "float" in dtype:
        return tf.random.uniform(shape)
    return tf.zeros(shape, dtype)


def _compiled(model: keras.Model) -> keras.Model:
    model.compile("adam", "mse")
    return model
