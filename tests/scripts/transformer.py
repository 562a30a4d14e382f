"""Text classification with a transformer of custom layers, masks and positions."""

import keras
import numpy as np
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.2

VOCABULARY, LENGTH = 30, 12


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, hidden, rate=0.0):
        super().__init__()
        # The gradient of a bias of keys is rounding alone.
        self.attention = layers.MultiHeadAttention(heads, width, use_bias=False)
        self.hidden = keras.Sequential(
            [layers.Dense(hidden, activation="relu"), layers.Dense(width)]
        )
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout = layers.Dropout(rate)

    def call(self, inputs, training=False):
        attended = self.dropout(self.attention(inputs, inputs), training=training)
        x = self.norm1(inputs + attended)
        return self.norm2(x + self.hidden(x))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, length, vocabulary, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width, mask_zero=True)
        self.positions = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x, mask=None):
        return self.tokens.compute_mask(x)


def main(strategy, directory):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=150)
    x = rng.integers(1, VOCABULARY - 9, size=(150, LENGTH)) + 9 * y[:, None]
    x[np.arange(LENGTH) >= rng.integers(6, LENGTH + 1, size=(150, 1))] = 0

    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        h = TokenAndPositionEmbedding(LENGTH, VOCABULARY, 16)(inputs)
        h = TransformerBlock(16, 2, 16)(h)
        h = layers.GlobalAveragePooling1D()(h)
        outputs = layers.Dense(2, activation="softmax")(h)
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.02),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    history = model.fit(
        x[:120],
        y[:120],
        batch_size=32,
        epochs=4,
        shuffle=False,
        validation_data=(x[120:], y[120:]),
        verbose=0,
    ).history
    return {"val_accuracy": history["val_accuracy"][-1]}, model
