"""The layers of programs, by name: each takes and returns a tensor."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .rows import FEATURES, LENGTH, PIXELS, VOCABULARY

UNITS = 6
EPSILON = 0.1
"""The variance of few rows may be small, and magnify what rounding leaves."""


@keras.saving.register_keras_serializable("differential")
class Counter(layers.Layer):
    """Counts its calls and its rows."""

    def build(self, shape: Any) -> None:
        options = {"initializer": "zeros", "trainable": False, "dtype": "int32"}
        self.calls = self.add_weight(shape=(), name="calls", **options)
        self.rows = self.add_weight(shape=(), name="rows", **options)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
            self.rows.assign_add(tf.shape(x)[0])
        return x


@keras.saving.register_keras_serializable("differential")
class InFunction(layers.Layer):
    """Normalizes and counts in a `@tf.function` of its own."""

    def build(self, shape: Any) -> None:
        self.norm = layers.BatchNormalization(epsilon=EPSILON)
        self.norm.build(shape)
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="calls"
        )

    @tf.function
    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1.0)
        return self.norm(x, training=training)


@keras.saving.register_keras_serializable("differential")
class Average(layers.Layer):
    """Subtracts a moving average of its inputs."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            shape=shape[1:], initializer="zeros", trainable=False, name="mean"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.8 * self.mean + 0.2 * keras.ops.mean(x, axis=0))
        return x - self.mean


@keras.saving.register_keras_serializable("differential")
class OwnLoss(layers.Layer):
    """Adds a loss on its inputs."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x


@keras.saving.register_keras_serializable("differential")
class DropPath(layers.Layer):
    """Draws, while it trains, with the seed that Keras makes at the first draw.

    It drops nothing, so that the numbers are those of one process.
    """

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        drawn = keras.random.uniform((keras.ops.shape(x)[0], 1))
        return keras.ops.where(drawn < 2.0, x, 0.0)


def _shared(x: Any) -> Any:
    dense = layers.Dense(x.shape[-1], "tanh")
    return dense(dense(x))


def _normalized(x: Any) -> Any:
    return layers.BatchNormalization(epsilon=EPSILON)(_without_shift(x))


def _without_shift(x: Any) -> Any:
    # Of a bias right before a normalization, the gradient is zero but for rounding, of
    # which Adam makes whole steps.
    return layers.Dense(UNITS, use_bias=False)(layers.Activation("tanh")(x))


APPLY: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: layers.Dense(UNITS, "tanh")(x),
    "batch_normalization": _normalized,
    "layer_normalization": lambda x: layers.LayerNormalization()(x),
    "dropout": lambda x: layers.Dropout(0.3, seed=3)(x),
    "gaussian_noise": lambda x: layers.GaussianNoise(0.2, seed=5)(x),
    "counter": lambda x: Counter()(x),
    "in_function": lambda x: InFunction()(_without_shift(x)),
    "average": lambda x: Average()(x),
    "regularized": lambda x: layers.Dense(
        UNITS, "relu", kernel_regularizer="l2", activity_regularizer="l2"
    )(x),
    "constrained": lambda x: layers.Dense(
        UNITS, kernel_constraint=keras.constraints.MaxNorm(0.5)
    )(x),
    "residual": lambda x: layers.Add()([x, layers.Dense(x.shape[-1], "gelu")(x)]),
    "shared": _shared,
    "frozen": lambda x: layers.Dense(UNITS, "tanh", trainable=False)(x),
    "own_loss": lambda x: OwnLoss()(x),
    "drop_path": lambda x: DropPath()(x),
    "lstm": lambda x: layers.LSTM(UNITS, return_sequences=True)(x),
    "gru": lambda x: layers.GRU(UNITS, return_sequences=True)(x),
    "rnn": lambda x: layers.SimpleRNN(UNITS, return_sequences=True)(x),
    "bidirectional": lambda x: layers.Bidirectional(
        layers.GRU(UNITS // 2, return_sequences=True)
    )(x),
    "conv1d": lambda x: layers.Conv1D(UNITS, 3, padding="same", activation="relu")(x),
    "attention": lambda x: layers.MultiHeadAttention(2, 4, seed=7)(x, x),
    "time_distributed": lambda x: layers.TimeDistributed(layers.Dense(UNITS, "relu"))(
        x
    ),
    "max_pooling1d": lambda x: layers.MaxPooling1D(2, padding="same")(x),
    "conv2d": lambda x: layers.Conv2D(4, 3, padding="same", activation="relu")(x),
    "depthwise": lambda x: layers.DepthwiseConv2D(3, padding="same")(x),
    "separable": lambda x: layers.SeparableConv2D(4, 3, padding="same")(x),
    "max_pooling2d": lambda x: layers.MaxPooling2D(2, padding="same")(x),
    "average_pooling2d": lambda x: layers.AveragePooling2D(2, padding="same")(x),
    "transposed": lambda x: layers.Conv2DTranspose(2, 3, strides=2, padding="same")(x),
    "group_normalization": lambda x: layers.GroupNormalization(2)(x),
    "spatial_dropout": lambda x: layers.SpatialDropout2D(0.3, seed=3)(x),
    "flip": lambda x: layers.RandomFlip(seed=3)(x),
}


def inputs_of(kind: str) -> tuple[Any, Any]:
    """Returns a model's inputs, and the tensor that its layers take."""
    if kind == "vector":
        return (x := keras.Input((FEATURES,))), x
    if kind == "sequence":
        return (x := keras.Input((LENGTH, FEATURES))), x
    if kind == "image":
        return (x := keras.Input((PIXELS, PIXELS, 2))), x
    if kind in ("ids", "masked_ids"):
        x = keras.Input((LENGTH,), dtype="int32")
        return x, layers.Embedding(VOCABULARY, UNITS, mask_zero=kind != "ids")(x)
    left = keras.Input((FEATURES,), name="left")
    right = keras.Input((LENGTH,), dtype="int32", name="right")
    rows = layers.GlobalAveragePooling1D()(layers.Embedding(VOCABULARY, UNITS)(right))
    return {"left": left, "right": right}, layers.Concatenate()([left, rows])
