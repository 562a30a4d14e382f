"""`keras.Model.export` of a trained model, served by TensorFlow alone."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.5


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4)).astype("float32")
    y = np.stack([x.sum(axis=1), x[:, 0] - x[:, 3]], axis=1)

    with strategy.scope():
        inputs = keras.Input((4,), name="features")
        x1 = layers.Dense(8, activation="tanh")(inputs)
        model = keras.Model(inputs, layers.Dense(2, name="targets")(x1))
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        model.fit(x, y, batch_size=30, epochs=4, shuffle=False, verbose=0)
        model.export(f"{directory}/exported", verbose=False)

    predictions = model.predict(x, verbose=0)
    if os.path.exists(f"{directory}/exported"):  # One of several workers writes.
        reloaded = tf.saved_model.load(f"{directory}/exported")
        np.testing.assert_allclose(reloaded.serve(x), predictions, atol=1e-5)
    return {"mae": np.abs(predictions - y).mean()}, model
