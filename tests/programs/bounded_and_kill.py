"""Train under a bound, and kill one worker after the other: BOUND STEPS KILLS."""

import os
import signal
import sys

import keras
import numpy as np
from killing import process_of

import tfdist

bound, steps, kills = map(int, sys.argv[1:])
strategy = tfdist.ParameterServerStrategy(consistency=tfdist.BoundedStaleness(bound))
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256)])
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")


class Kill(keras.callbacks.Callback):
    killed = 0

    def on_train_batch_end(self, batch, logs=None):
        # All are running: the bound would let nobody go on without one that is not.
        if batch % 100 == 99 and self.killed < kills and is_up(self.killed % 2):
            os.kill(process_of("worker", self.killed % 2), signal.SIGKILL)
            self.killed += 1


def is_up(worker):
    return process_of("worker", worker) is not None


x = np.random.default_rng(0).normal(size=(8 * steps, 64)).astype("float32")
callback = Kill()
model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=[callback])
report = strategy.staleness_report()
print("kills", callback.killed, flush=True)
print("staleness", report.maximum, flush=True)
print("steps", report.steps, flush=True)
print("iterations", int(model.optimizer.iterations), flush=True)
