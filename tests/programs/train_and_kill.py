"""Train, and kill or stop the tasks named in the file `victims`: EPOCHS STEPS."""

import os
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from killing import process_of

import tfdist

epochs, steps = map(int, sys.argv[1:])
kept = os.path.join(os.environ["TFDIST_CHECKPOINT_DIR"], "fit-000")
with open("victims") as file:
    victims = file.read().split()
strategy = tfdist.ParameterServerStrategy(checkpoint_interval=0.2)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        has_checkpoint = any(name.startswith("checkpoint") for name in os.listdir(kept))
        if batch % 50 or not (victims and has_checkpoint):
            return
        victim = victims.pop(0)
        with open("victims", "w") as file:
            file.write(" ".join(victims))
        name, job, index = victim.split(":")
        print(name, job, index, flush=True)
        os.kill(process_of(job, int(index)), getattr(signal, name))
        if victim == "SIGKILL:worker:0":
            train_until_it_is_back()


def train_until_it_is_back():
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        model.train_on_batch(x[:8], y[:8])
        try:
            counted = strategy.worker_report().steps[0]
        except (
            tf.errors.AbortedError,  # A new process has not been connected to yet.
            tf.errors.CancelledError,
            tf.errors.UnavailableError,
        ):
            time.sleep(0.1)  # It cannot answer yet.
            continue
        # It counts in a variable of its own, which began again with it.
        if 0 < counted < 10:
            print("the new worker:0 has run a step", flush=True)
            return


x = np.random.default_rng(0).normal(size=(8 * steps, 4)).astype("float32")
y = x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])
history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Kill()])
print("epochs", history.epoch, flush=True)
print("iterations", int(model.optimizer.iterations), flush=True)
# A busy machine may have given all that was left to one of them.
while not all(strategy.worker_report().steps):
    model.train_on_batch(x[:8], y[:8])
print("workers True", flush=True)
