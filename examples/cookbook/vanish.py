"""Machines that may vanish: training goes on from its last checkpoint.

tfdist local --min_workers=1 --checkpoint_dir=checkpoints vanish.py
"""

import os
import signal
from pathlib import Path

import keras
import numpy as np

import tfdist

# A checkpoint each second, for this example: by default, one each 30 seconds.
strategy = tfdist.ParameterServerStrategy(checkpoint_interval=1)

x = np.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
y = x @ np.arange(8, dtype="float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")


class Vanish(keras.callbacks.Callback):
    """Kills the chief once, in place of the machine that is taken away."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3 and not Path("vanished").exists():
            Path("vanished").touch()
            print("the chief vanishes after epoch 4", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


history = model.fit(x, y, batch_size=64, epochs=8, verbose=2, callbacks=[Vanish()])
print(f"epochs: {len(history.epoch)}, loss {history.history['loss'][-1]:.4f}")
