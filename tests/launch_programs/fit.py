"""Fits a small model under the strategy that is named, and prints what it does.

Arguments: `none`, `mirrored`, `parameter_server` or `multi_worker`.
"""

import contextlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist

STRATEGIES = {
    "mirrored": tf.distribute.MirroredStrategy,
    "parameter_server": tfdist.ParameterServerStrategy,
    "multi_worker": lambda: tfdist.MultiWorkerMirroredStrategy(startup_timeout=200),
}

name = sys.argv[1]
strategy = STRATEGIES[name]() if name in STRATEGIES else None
with strategy.scope() if strategy else contextlib.nullcontext():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.summary()
x = np.ones((64, 3), "float32")
# Longer than a launcher takes between two looks.
patience = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(2.0))
model.fit(x, x[:, :1], batch_size=16, epochs=2, callbacks=[patience])
