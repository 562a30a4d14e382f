"""The shortest cluster program: linear regression on parameter servers.

tfdist local quickstart.py
"""

import keras
import numpy as np

import tfdist

x = np.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
y = x @ np.arange(8, dtype="float32")

strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")

model.fit(x, y, batch_size=64, epochs=5, verbose=2)
print(strategy.placement_report())
