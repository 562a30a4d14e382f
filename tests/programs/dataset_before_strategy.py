"""Train on a dataset that was made before the strategy."""

import keras
import numpy as np
import tensorflow as tf

import tfdist

x, y = np.ones((20, 4), "float32"), np.arange(20, dtype="float32")[:, None]
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20).batch(8)

strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
for _ in range(2):
    model.fit(data, epochs=2, verbose=0)
model.fit(data, validation_data=data, epochs=2, verbose=0)
print(sum(strategy.worker_report().steps))
