"""Train for EPOCHS of STEPS, some milliseconds each.

While there is a file `slow`, those after step 50 take longer: somebody is to see it.
"""

import os
import sys
import time

import keras
import numpy as np

import tfdist

epochs, steps = map(int, sys.argv[1:])
strategy = tfdist.ParameterServerStrategy(checkpoint_interval=1e6)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.5 if batch > 50 and os.path.exists("slow") else 0.01)
        if batch == 50:
            print("step 50", flush=True)


x = np.random.default_rng(0).normal(size=(8 * steps, 4)).astype("float32")
model.fit(x, x[:, :1], batch_size=8, epochs=epochs, verbose=0, callbacks=[Slow()])
print("iterations", int(model.optimizer.iterations), flush=True)
