"""TensorBoard: hyperparameters of runs; the chief alone writes."""

import os

import keras
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api, metadata

SAME_WEIGHTS = True
WITHIN = 0.2

UNITS = api.HParam("units", api.Discrete([4, 8]))


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    for units in UNITS.domain.values:
        with strategy.scope():
            hidden = keras.layers.Dense(units, "relu")
            model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.05), "mse")
        logs = os.path.join(directory, f"units-{units}")
        callbacks = [
            keras.callbacks.TensorBoard(logs),
            api.KerasCallback(logs, {UNITS: units}),
        ]
        options = {"batch_size": 16, "shuffle": False, "verbose": 0}
        model.fit(x, y, epochs=3, callbacks=callbacks, **options)
        if getattr(strategy.extended, "worker_index", 0) == 0:
            events = EventAccumulator(logs).Reload()
            tags = events.PluginTagToContent(metadata.PLUGIN_NAME)
            assert metadata.SESSION_START_INFO_TAG in tags, tags
            assert metadata.SESSION_END_INFO_TAG in tags, tags
    return {"loss": model.evaluate(x, y, batch_size=16, verbose=0)}, model
