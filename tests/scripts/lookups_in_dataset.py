"""Layers adapted outside of the scope preprocess in the dataset, on the CPU."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2


def main(strategy, directory):
    rng = np.random.default_rng(0)
    colors = rng.choice(["red", "green", "blue", "white"], 150)
    lengths = rng.uniform(0, 10, 150).astype("float32")
    y = np.where(colors == "red", lengths > 5, lengths < 3).astype("float32")

    lookup = layers.StringLookup(output_mode="one_hot")
    lookup.adapt(colors)
    buckets = layers.Discretization(num_bins=8)
    buckets.adapt(lengths)

    def preprocess(color, length, target):
        return (lookup(color), buckets(length)), target

    dataset = tf.data.Dataset.from_tensor_slices((colors, lengths, y)).batch(32)
    dataset = dataset.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.cache().prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        color = keras.Input((lookup.vocabulary_size(),))
        length = keras.Input((), dtype="int32")
        embedded = layers.Embedding(8, 4)(length)
        x = layers.Dense(16, "relu")(layers.concatenate([color, embedded]))
        model = keras.Model([color, length], layers.Dense(1, "sigmoid")(x))
        model.compile(
            keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"]
        )
    model.fit(dataset, epochs=5, verbose=0)
    return {
        "accuracy": model.evaluate(dataset, return_dict=True, verbose=0)["accuracy"]
    }, model
