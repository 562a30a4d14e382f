"""A worker that fails as it is told: FAULT INDEX_OF_THE_VICTIM DIRECTORY."""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import tfdist

fault, victim, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tfdist.LocalUpdateStrategy(
    local_steps=4,
    outer_optimizer=keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True),
    peer_timeout=20.0,
    startup_timeout=200.0,
)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 9 and index == victim:
            if fault == "error":
                raise KeyError("of the script")
            os.kill(os.getpid(), getattr(signal, fault))


x = np.random.RandomState(0).rand(480, 4).astype("float32")
history = model.fit(
    x, x[:, :1], batch_size=24, epochs=2, verbose=0, callbacks=[Fault()]
)
found = {
    "loss": history.history["loss"],
    "kernel": model.get_weights()[0].ravel().tolist(),
    "present": strategy.num_workers,
}
(directory / f"{index}.json").write_text(json.dumps(found))
