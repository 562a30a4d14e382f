"""Trains a pipeline of two stages one of which gets a signal in the second epoch, once.

    python -m launch.local --num_ps=0 --num_workers=2 --program=coordinator \
        tests/programs/pipeline_lost_stage.py DIRECTORY SIGNAL
"""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

EPOCHS = 4


class SignalOnce(keras.callbacks.Callback):
    def __init__(self, signum, marker, device):
        super().__init__()
        self.signum, self.marker, self.device = signum, marker, device

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 7 and not self.marker.exists():
            self.marker.touch()
            with tf.device(self.device):
                stat = tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")
                os.kill(int(stat[0].numpy()), self.signum)


def main(directory, name):
    strategy = tfdist.research.PipelineStrategy(2, microbatches=2, peer_timeout=10)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.ones((40, 4), "float32")
    kept = keras.callbacks.BackupAndRestore(str(Path(directory, "kept")))
    marker = Path(directory, "signalled")
    send = SignalOnce(signal.Signals[name], marker, strategy.devices[1])
    history = model.fit(
        x, x[:, :1], 8, epochs=EPOCHS, verbose=0, callbacks=[kept, send]
    )
    print("epochs", history.epoch, "iterations", int(model.optimizer.iterations))


if __name__ == "__main__":
    main(*sys.argv[1:])
