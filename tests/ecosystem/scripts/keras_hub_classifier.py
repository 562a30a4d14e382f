"""KerasHub: a BERT classifier of raw strings, with its preprocessor, saved and loaded."""

import os

import keras
import keras_hub
import numpy as np

# The biases of keys have no gradient but rounding, which Adam enlarges.
SAME_WEIGHTS = False
WITHIN = 0.05

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["good", "fine", "nice", "bad", "poor", "##ly", "film", "play"]
LENGTH = 8


def texts_and_labels(count):
    rng = np.random.default_rng(0)
    texts, labels = [], rng.integers(2, size=count)
    for label in labels:
        adjective = rng.choice(WORDS[:3] if label else WORDS[3:5])
        texts.append(f"{rng.choice(WORDS[6:])} {adjective}{rng.choice(['', 'ly'])}")
    return np.array(texts), labels


def build_model():
    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=SPECIAL + WORDS)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    return keras_hub.models.BertTextClassifier(
        backbone,
        num_classes=2,
        dropout=0.0,
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=LENGTH
        ),
    )


def main(strategy, directory):
    texts, labels = texts_and_labels(64)
    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(0.005),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(texts, labels, batch_size=16, epochs=12, shuffle=False, verbose=0)
    loss, accuracy = model.evaluate(texts, labels, batch_size=16, verbose=0)

    path = os.path.join(directory, "model.keras")
    model.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    again = loaded.predict(texts, batch_size=16, verbose=0)
    difference = np.abs(again - model.predict(texts, batch_size=16, verbose=0)).max()
    return {"loss": loss, "accuracy": accuracy, "difference": difference}, model
