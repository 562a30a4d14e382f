"""Trains without parameter servers; a process is killed in the second epoch, once.

    python -m launch.local --num_ps=0 --checkpoint_dir=kept \
        tests/programs/kept_workers.py STRATEGY TASK
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

EPOCHS, STEPS = 3, 10


class KillOnce(keras.callbacks.Callback):
    """Kills this process once there is a checkpoint, and tells where `fit` began."""

    def __init__(self, is_victim):
        super().__init__()
        self.is_victim = is_victim
        # An attribute that is plain data would come back from the checkpoint.
        self.begins = iter(["begins at"])

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        for words in self.begins:
            print(words, self.epoch_now, batch, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        marker = Path("killed")
        if self.is_victim and (self.epoch_now, batch) == (1, 6) and not marker.exists():
            marker.touch()
            while not [*Path("kept").glob("fit-000/checkpoint-*")]:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)


def main(name, victim):
    keras.utils.set_random_seed(1)
    strategy = getattr(tfdist, name)(checkpoints=tfdist.Checkpoints(every=1e-6))
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    kill = KillOnce(f"{task['type']}:{task['index']}" == victim)
    x = np.random.default_rng(0).normal(size=(8 * STEPS, 4)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    history = model.fit(
        x, x[:, :1], 8, epochs=EPOCHS, verbose=0, callbacks=[kill]
    ).history
    found = [*np.ravel(model.get_weights()[0]), *history["loss"], *history["mae"]]
    print("iterations", int(model.optimizer.iterations), *map(float, found))


if __name__ == "__main__":
    main(*sys.argv[1:])
