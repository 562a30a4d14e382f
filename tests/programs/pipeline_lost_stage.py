"""Trains a pipeline of two stages one of which is killed in the second epoch, once.

    python -m launch.local --num_ps=0 --num_workers=2 --program=coordinator \
        tests/programs/pipeline_lost_stage.py DIRECTORY
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


class KillOnce(keras.callbacks.Callback):
    def __init__(self, marker, device):
        super().__init__()
        self.marker, self.device = marker, device

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 7 and not self.marker.exists():
            self.marker.touch()
            with tf.device(self.device):
                stat = tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")
                os.kill(int(stat[0].numpy()), signal.SIGKILL)


def main(directory):
    strategy = tfdist.PipelineStrategy(2, microbatches=2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.ones((40, 4), "float32")
    kept = keras.callbacks.BackupAndRestore(str(Path(directory, "kept")))
    kill = KillOnce(Path(directory, "killed"), strategy.devices[1])
    history = model.fit(
        x, x[:, :1], 8, epochs=EPOCHS, verbose=0, callbacks=[kept, kill]
    )
    print("epochs", history.epoch, "iterations", int(model.optimizer.iterations))


if __name__ == "__main__":
    main(sys.argv[1])
