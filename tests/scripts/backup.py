"""`BackupAndRestore`: a `fit` that breaks off goes on where it was."""

import contextlib

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2


class Interruption(RuntimeError):
    pass


class BreakOff(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise Interruption


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(110, 5)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def train(callbacks):
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((5,)), layers.Dense(16, "tanh"), layers.Dense(1)]
            )
            model.compile(
                keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"]
            )
            backup = keras.callbacks.BackupAndRestore(f"{directory}/backup")
            history = model.fit(
                x,
                y,
                batch_size=32,
                epochs=5,
                shuffle=False,
                callbacks=[backup, *callbacks],
                verbose=0,
            )
        return model, history

    with contextlib.suppress(Interruption):
        train([BreakOff()])
    model, history = train([])
    assert history.epoch == [2, 3, 4]
    assert int(model.optimizer.iterations.numpy()) == 20
    return {"mae": history.history["mae"][-1]}, model
