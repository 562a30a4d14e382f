"""`TextVectorization` in the dataset, then in an end-to-end model of raw strings."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2

GOOD, BAD = ["great", "lovely", "superb"], ["awful", "boring", "poor"]
FILLERS = ["a", "film", "and", "plot", "with", "actors", "the"]


def review(rng, positive):
    words = [*rng.choice(FILLERS, 6), *rng.choice(GOOD if positive else BAD, 2)]
    return " ".join(rng.permutation(words))


def main(strategy, directory):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=140)
    texts = np.array([review(rng, positive) + " <br />" for positive in y])
    raw = tf.data.Dataset.from_tensor_slices((texts, y))
    raw_train, raw_test = raw.take(110).batch(32), raw.skip(110).batch(32)

    vectorize = layers.TextVectorization(
        max_tokens=50, output_mode="int", output_sequence_length=10
    )
    vectorize.adapt(raw_train.map(lambda text, label: text))
    train = raw_train.map(lambda text, label: (vectorize(text), label)).cache()

    with strategy.scope():
        inputs = keras.Input((None,), dtype="int64")
        x = layers.Embedding(50, 8)(inputs)
        x = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
        x = layers.GlobalMaxPooling1D()(x)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
        model.compile(
            keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
        )
    model.fit(train, epochs=4, verbose=0)

    with strategy.scope():
        strings = keras.Input((1,), dtype="string")
        end_to_end = keras.Model(strings, model(vectorize(strings)))
        end_to_end.compile("adam", loss="binary_crossentropy", metrics=["accuracy"])
    found = end_to_end.evaluate(raw_test, return_dict=True, verbose=0)
    opinion = end_to_end.predict(tf.constant([["a superb lovely film"]]), verbose=0)
    assert opinion.shape == (1, 1)
    return {"accuracy": found["accuracy"]}, model
