"""Train until a file ends it: DATA, STEPS per epoch, the FILE, and the KIND of replicas."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.parameter_server.seam import replicas

data, steps, marker = sys.argv[1], int(sys.argv[2]), sys.argv[3]
replicas.KIND = sys.argv[4] if sys.argv[4:] else replicas.KIND
strategy = tfdist.ParameterServerStrategy(startup_timeout=200, stall_timeout=20)


def loss(y, out):
    # In the log of the worker that runs the step.
    tf.print("a step of this worker", output_stream=sys.stderr)
    # Its gradient is 1, so that the weight counts the steps.
    return out - y


with strategy.scope():
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.SGD(1.0), loss)


class Watch(keras.callbacks.Callback):
    epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs = epoch + 1
        print("steps", *strategy.worker_report().steps, flush=True)
        if os.path.exists(marker):
            self.model.stop_training = True


watch = Watch()
ones, zeros = np.ones((4 * steps, 1), "float32"), np.zeros((4 * steps, 1), "float32")
if data == "endless":
    dataset = tf.data.Dataset.from_tensor_slices((ones, zeros)).repeat().batch(4)
    model.fit(
        dataset, steps_per_epoch=steps, epochs=10**6, verbose=0, callbacks=[watch]
    )
else:
    model.fit(ones, zeros, batch_size=4, epochs=10**6, verbose=0, callbacks=[watch])
print("asked for", watch.epochs * steps)
print("iterations", int(model.optimizer.iterations))
print("weight", -int(dense.kernel.numpy()[0, 0]))
print("reported", sum(strategy.worker_report().steps), flush=True)
