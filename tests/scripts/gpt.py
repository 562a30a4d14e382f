"""A small GPT that generates text in a callback, by `predict` and by a call."""

import keras
import numpy as np
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.3

VOCABULARY, LENGTH, WIDTH = 12, 10, 16


class CausalBlock(layers.Layer):
    def __init__(self, width):
        super().__init__()
        # The gradient of a bias of keys is rounding alone.
        self.attention = layers.MultiHeadAttention(2, width, use_bias=False)
        self.norm = layers.LayerNormalization()
        self.dense = layers.Dense(width, activation="gelu")

    def call(self, inputs):
        attended = self.attention(inputs, inputs, use_causal_mask=True)
        x = self.norm(inputs + attended)
        return x + self.dense(x)


class PositionEmbedding(layers.Layer):
    def __init__(self, length, width):
        super().__init__()
        self.positions = layers.Embedding(length, width)

    def call(self, x):
        return x + self.positions(ops.arange(ops.shape(x)[1]))


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, start):
        super().__init__()
        self.start = start
        self.texts = []

    def next_token(self, tokens):
        padded = np.zeros((1, LENGTH), dtype="int32")
        padded[0, : len(tokens)] = tokens
        if len(self.texts) % 2:
            logits = ops.convert_to_numpy(self.model(padded)[0])
        else:
            logits = self.model.predict(padded, verbose=0)[0]
        return int(logits[0, len(tokens) - 1].argmax())

    def on_epoch_end(self, epoch, logs=None):
        tokens = list(self.start)
        while len(tokens) < LENGTH:
            tokens.append(self.next_token(tokens))
        self.texts.append(tokens)


def main(strategy, directory):
    rng = np.random.default_rng(0)
    starts = rng.integers(0, VOCABULARY, size=(110, 1))
    text = (
        starts + 5 * np.arange(LENGTH + 1)
    ) % VOCABULARY  # Each token tells the next.
    x, y = text[:, :-1].astype("int32"), text[:, 1:].astype("int32")

    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        h = PositionEmbedding(LENGTH, WIDTH)(
            layers.Embedding(VOCABULARY, WIDTH)(inputs)
        )
        h = CausalBlock(WIDTH)(h)
        model = keras.Model(inputs, [layers.Dense(VOCABULARY)(h), h])
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.02), loss=[loss_fn, None])
    generator = TextGenerator(start=[3])
    model.fit(
        x, y, batch_size=32, epochs=4, shuffle=False, callbacks=[generator], verbose=0
    )
    steps = np.diff(generator.texts[-1]) % VOCABULARY
    assert len(generator.texts) == 4
    return {"right_tokens": np.mean(steps == 5)}, model
