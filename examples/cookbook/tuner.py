"""KerasTuner: each trial trains on the cluster. It needs `pip install keras-tuner`.

tfdist local tuner.py
"""

import keras
import keras_tuner
import numpy as np

import tfdist

strategy = tfdist.ParameterServerStrategy()

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 8)).astype("float32")
y = np.tanh(x[:, :4].sum(1)) + 0.1 * rng.normal(size=2000)


def build(choices):
    model = keras.Sequential([keras.Input((8,))])
    units = choices.Int("units", 4, 32, step=4)
    model.add(keras.layers.Dense(units, activation="relu"))
    model.add(keras.layers.Dense(1))
    rate = choices.Choice("rate", [0.0001, 0.001, 0.01])
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


# On synchronous workers, the seed makes all workers choose the same trials.
tuner = keras_tuner.RandomSearch(
    build,
    objective="val_loss",
    max_trials=4,
    seed=1,
    overwrite=True,
    directory="search",
    distribution_strategy=strategy,
)
tuner.search(
    x[:1500],
    y[:1500],
    batch_size=50,
    epochs=5,
    verbose=0,
    validation_data=(x[1500:], y[1500:]),
)
best = tuner.oracle.get_best_trials(1)[0]
print(f"best of 4 trials: {best.hyperparameters.values}, val_loss {best.score:.3f}")
