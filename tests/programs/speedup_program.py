"""Trains for three epochs of eight steps, and validates; any argument is its policy."""

import sys

import keras
import numpy as np

import tfdist

policy = tfdist.BoundedStaleness(int(sys.argv[1])) if sys.argv[1:] else None
strategy = tfdist.ParameterServerStrategy(consistency=policy)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")


class Restless(keras.callbacks.Callback):
    """Calls `fit` within `fit`, whose epochs are not the user's."""

    def on_train_end(self, logs=None):
        model.fit(x[:16], y[:16], batch_size=16, verbose=0)


x = np.random.default_rng(0).normal(size=(128, 4)).astype("float32")
y = x.sum(axis=1)
model.fit(
    *(x, y),
    batch_size=16,
    epochs=3,
    validation_data=(x, y),
    verbose=0,
    callbacks=[Restless()],
)
