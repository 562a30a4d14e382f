"""A worker is killed once, and all train until it has taken part for three epochs again.

INDEX_OF_THE_VICTIM OPTIONS_AS_JSON DIRECTORY
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import tfdist

victim, options, directory = (
    int(sys.argv[1]),
    json.loads(sys.argv[2]),
    Path(sys.argv[3]),
)
config = json.loads(os.environ["TF_CONFIG"])
index, workers = config["task"]["index"], len(config["cluster"]["worker"])
pids = directory / f"{index}.pids"
pids.write_text(f"{pids.read_text() if pids.exists() else ''}{os.getpid()}\n")
starts = len(pids.read_text().splitlines())
if "outer" in options:
    options["outer_optimizer"] = keras.optimizers.Adam(options.pop("outer"))
if options.pop("ring", False):
    options["mixing"] = tfdist.mixing.Gossip(tfdist.mixing.ring)
strategy = tfdist.LocalUpdateStrategy(
    **options, peer_timeout=20.0, startup_timeout=200.0
)
with strategy.scope():
    layers = [keras.layers.Dense(3, "relu"), keras.layers.BatchNormalization()]
    layers = [keras.layers.Input((4,)), *layers, keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")


class KilledOnce(keras.callbacks.Callback):
    """All workers see the same numbers at the end of an epoch, and stop alike."""

    def __init__(self):
        super().__init__()
        self.is_lost = self.is_again = index == victim and starts == 2
        self.first, self.steps, self.epochs = None, 0, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.first = self.first or (self.epoch, batch)
        self.steps += 1
        if (index, starts, self.epoch, batch) == (victim, 1, 1, 9):
            os.kill(os.getpid(), signal.SIGKILL)
        self.is_lost |= strategy.num_workers == workers - 1
        time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += self.is_lost and strategy.num_workers == workers
        self.model.stop_training = self.epochs == 3


x = np.random.RandomState(0).rand(480, 4).astype("float32")
callback = KilledOnce()
backup = keras.callbacks.BackupAndRestore(str(directory / "backup"))
given = {"batch_size": 24, "verbose": 0}
strategy.barrier()
history = model.fit(x, x[:, :1], epochs=300, callbacks=[callback, backup], **given)
strategy.barrier()
again = model.fit(x, x[:, :1], epochs=1, **given)
_, state = strategy.fit_driver._mix(model).state
found = {
    "weights": [each.ravel().tolist() for each in model.get_weights()],
    "state": [each.ravel().tolist() for each in state],
    "iterations": int(model.optimizer.iterations.numpy()),
    "loss": history.history["loss"][-2:] + again.history["loss"],
    "present": strategy.num_workers,
    "first": callback.first,
    "epochs": callback.epochs,
    "last_epoch": callback.epoch,
}
(directory / f"{index}.json").write_text(json.dumps(found))
