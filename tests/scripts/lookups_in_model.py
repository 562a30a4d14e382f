"""Structured data: layers adapted in the scope are part of the model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2

NUMERIC = ["age", "pressure"]
TEXT = ["kind", "city"]


def encode_number(feature, name, dataset):
    normalization = layers.Normalization()
    normalization.adapt(dataset.map(lambda x, y: tf.expand_dims(x[name], -1)))
    return normalization(feature)


def encode_text(feature, name, dataset):
    lookup = layers.StringLookup(output_mode="multi_hot")
    lookup.adapt(dataset.map(lambda x, y: tf.expand_dims(x[name], -1)))
    return lookup(feature)


def encode_integer(feature, name, dataset):
    lookup = layers.IntegerLookup(output_mode="one_hot")
    lookup.adapt(dataset.map(lambda x, y: tf.expand_dims(x[name], -1)))
    return lookup(feature)


def main(strategy, directory):
    rng = np.random.default_rng(0)
    size = 150
    columns = {
        "age": rng.uniform(20, 80, size).astype("float32"),
        "pressure": rng.normal(130, 20, size).astype("float32"),
        "kind": rng.choice(["normal", "fixed", "reversible"], size),
        "city": rng.choice(["Oslo", "Lima", "Pune"], size),
        "grade": rng.integers(1, 5, size),
    }
    target = (columns["age"] > 50) ^ (columns["kind"] == "fixed")
    dataset = tf.data.Dataset.from_tensor_slices((columns, target.astype("int32")))
    train, val = dataset.take(120).batch(32), dataset.skip(120).batch(32)

    with strategy.scope():
        inputs = {
            **{name: keras.Input((1,), name=name) for name in NUMERIC},
            **{name: keras.Input((1,), name=name, dtype="string") for name in TEXT},
            "grade": keras.Input((1,), name="grade", dtype="int64"),
        }
        features = [encode_number(inputs[name], name, train) for name in NUMERIC]
        features += [encode_text(inputs[name], name, train) for name in TEXT]
        features.append(encode_integer(inputs["grade"], "grade", train))
        x = layers.Dense(32, activation="relu")(layers.concatenate(features))
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
        model.compile(
            keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
        )
    model.fit(train, epochs=6, validation_data=val, verbose=0)

    sample = {name: tf.convert_to_tensor(v[:1, None]) for name, v in columns.items()}
    assert model.predict(sample, verbose=0).shape == (1, 1)
    found = model.evaluate(train, return_dict=True, verbose=0)
    return {"accuracy": found["accuracy"]}, model
