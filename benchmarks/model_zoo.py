"""Well-known models, as functions that build and compile them.

    python -m tfdist.plan benchmarks/model_zoo.py:vgg16 --num_ps=4

All are compiled with Adam, so each weight takes three times its size. They are for
measuring only: nothing initializes them.
"""

from collections.abc import Callable, Mapping

import keras
from keras import layers, ops

# Criteo Kaggle's 26 categorical features: how many values each has.
CRITEO_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593),
    *(3194, 27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105),
    142572,
)
DLRM_BATCH = 2048
BERT_TOKENS = 32 * 128  # a batch


def vgg16() -> keras.Model:
    return _classifier(keras.applications.VGG16(weights=None))


def resnet50() -> keras.Model:
    return _classifier(keras.applications.ResNet50(weights=None))


def efficientnet_b0() -> keras.Model:
    return _classifier(keras.applications.EfficientNetB0(weights=None))


def mobilenet_v2() -> keras.Model:
    return _classifier(keras.applications.MobileNetV2(weights=None))


def densenet121() -> keras.Model:
    return _classifier(keras.applications.DenseNet121(weights=None))


def bert_base(
    depth: int = 12, width: int = 768, heads: int = 12, words: int = 30522
) -> keras.Model:
    """BERT-base with its embeddings and its pooler: 109 million parameters.

    J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019.
    """
    word_ids = keras.Input((512,), dtype="int32", name="word_ids")
    segment_ids = keras.Input((512,), dtype="int32", name="segment_ids")
    x = layers.Embedding(words, width, name="words")(word_ids)
    x = x + layers.Embedding(2, width, name="segments")(segment_ids)
    x = PositionEmbedding(name="positions")(x)
    x = layers.LayerNormalization()(x)
    for _ in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
        x = layers.LayerNormalization()(x + attention(x, x))
        hidden = layers.Dense(4 * width, activation="gelu")(x)
        hidden = layers.Dropout(0.1)(layers.Dense(width)(hidden))
        x = layers.LayerNormalization()(x + hidden)
    pooled = layers.Dense(width, activation="tanh", name="pooler")(x[:, 0])
    model = keras.Model([word_ids, segment_ids], pooled, name="bert")
    model.compile("adam", "mse")
    return model


def dlrm(width: int = 16) -> keras.Model:
    """DLRM for Criteo Kaggle, with the layers of its authors' own benchmark.

    M. Naumov et al., "Deep Learning Recommendation Model for Personalization and
    Recommendation Systems", 2019.
    """
    numbers = keras.Input((13,), name="numbers")
    categories = keras.Input((26,), dtype="int32", name="categories")
    dense = numbers
    for units in (512, 256, 64, width):
        dense = layers.Dense(units, activation="relu")(dense)
    vectors = [dense] + [
        layers.Embedding(rows, width, name=f"table_{i}")(categories[:, i])
        for i, rows in enumerate(CRITEO_KAGGLE)
    ]
    top = layers.Concatenate()([dense, Interactions()(vectors)])
    for units in (512, 256):
        top = layers.Dense(units, activation="relu")(top)
    click = layers.Dense(1, activation="sigmoid")(top)
    model = keras.Model([numbers, categories], click, name="dlrm")
    model.compile("adam", "binary_crossentropy", metrics=["AUC"])
    return model


MODELS: Mapping[str, Callable[[], keras.Model]] = {
    "VGG16": vgg16,
    "ResNet50": resnet50,
    "EfficientNetB0": efficientnet_b0,
    "MobileNetV2": mobilenet_v2,
    "DenseNet121": densenet121,
    "BERT-base": bert_base,
    "DLRM": dlrm,
}
LOOKUPS: Mapping[str, Mapping[str, int]] = {
    "BERT-base": {"words/embeddings": BERT_TOKENS},
    "DLRM": {"table_*/embeddings": DLRM_BATCH},
}


class PositionEmbedding(keras.Layer):
    """Adds a learned vector to each position."""

    def build(self, input_shape):
        """Creates the vectors."""
        self.positions = self.add_weight(input_shape[1:], "uniform", name="embeddings")

    def call(self, x):
        """Adds to a batch of shape (batch, positions, width)."""
        return x + self.positions


class Interactions(keras.Layer):
    """The dot product of every pair of vectors."""

    def call(self, vectors):
        """Returns a batch of shape (batch, pairs)."""
        stacked = ops.stack(vectors, axis=1)
        products = ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1)))
        pairs = [i * len(vectors) + j for i in range(len(vectors)) for j in range(i)]
        return ops.take(ops.reshape(products, (-1, len(vectors) ** 2)), pairs, axis=1)


def _classifier(model: keras.Model) -> keras.Model:
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
