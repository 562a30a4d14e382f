"""`ModelCheckpoint` in a `fit` within the scope; `load_model` within and outside."""

import os

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2


def make_or_restore_model(directory):
    files = [f"{directory}/{name}" for name in os.listdir(directory)]
    if files:
        return keras.models.load_model(max(files, key=os.path.getctime))
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(16, "tanh"), layers.Dense(3, "softmax")]
    )
    model.compile(
        keras.optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def train(strategy, directory, data, epochs):
    with strategy.scope():
        model = make_or_restore_model(directory)
        checkpoint = keras.callbacks.ModelCheckpoint(
            f"{directory}/{{epoch}}.keras", save_freq="epoch"
        )
        model.fit(
            *data,
            batch_size=32,
            epochs=epochs,
            shuffle=False,
            callbacks=[checkpoint],
            verbose=0,
        )
    return model


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(110, 5)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    checkpoints = f"{directory}/checkpoints"
    os.makedirs(checkpoints, exist_ok=True)

    train(strategy, checkpoints, (x, y), epochs=2)
    model = train(strategy, checkpoints, (x, y), epochs=3)
    best = keras.callbacks.ModelCheckpoint(
        f"{directory}/best.weights.h5", save_weights_only=True, save_best_only=True
    )
    model.fit(
        x,
        y,
        batch_size=32,
        shuffle=False,
        validation_split=0.2,
        callbacks=[best],
        verbose=0,
    )
    model.save(f"{directory}/last.keras")

    if hasattr(strategy, "barrier"):
        strategy.barrier()
    loaded = keras.models.load_model(f"{directory}/last.keras")
    same = np.allclose(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5
    )
    assert same
    with strategy.scope():
        again = keras.models.load_model(f"{directory}/last.keras")
    again.fit(x, y, batch_size=32, shuffle=False, verbose=0)
    accuracy = again.evaluate(x, y, return_dict=True, verbose=0)["accuracy"]
    return {"accuracy": accuracy}, again
