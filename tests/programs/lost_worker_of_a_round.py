"""Trains synchronously while a worker is killed for good, and compares with one process."""

import os

import keras
import numpy as np
import psutil

import launch
import tfdist

STEP = 20  # An odd number of batches is under way in its round.
X = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
FIT = {"epochs": 2, "shuffle": False, "verbose": 0}


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class Kill(keras.callbacks.Callback):
    def __init__(self, process):
        super().__init__()
        self.process = process

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEP and self.process.is_running():
            self.process.kill()


def difference(mine, theirs):
    pairs = zip(mine.get_weights(), theirs.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


def main():
    with launch.servers(num_ps=2, num_workers=2, startup_timeout=200.0) as servers:
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        strategy = tfdist.ParameterServerStrategy(consistency=tfdist.Synchronous())
        with strategy.scope():
            model = build()
        killed = psutil.Process(list(servers.pids.values())[-1])
        model.fit(X, Y, batch_size=8, callbacks=[Kill(killed)], **FIT)
        one = build()
        one.fit(X, Y, batch_size=16, **FIT)
        assert not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE
        rounds = int(model.optimizer.iterations), int(one.optimizer.iterations)
        assert rounds[0] == rounds[1], rounds
        assert difference(model, one) < 1e-4, difference(model, one)
    print("as one process")


if __name__ == "__main__":
    main()
