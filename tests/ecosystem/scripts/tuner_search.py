"""KerasTuner: a search whose trials train under the strategy."""

import keras
import keras_tuner
import numpy as np

SAME_WEIGHTS = True
WITHIN = 0.5


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def build_model(hp):
        units = hp.Int("units", 2, 8, step=2)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(units, "relu", name="hidden")]
        )
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(hp.Choice("rate", [0.01, 0.05])), "mse")
        return model

    tuner = keras_tuner.RandomSearch(
        build_model,
        objective="val_loss",
        max_trials=3,
        seed=1,
        directory=directory,
        project_name="search",
        distribution_strategy=strategy,
    )
    options = {"batch_size": 16, "shuffle": False, "verbose": 0}
    tuner.search(x, y, epochs=2, validation_data=(x, y), **options)
    trials = tuner.oracle.get_best_trials(3)
    assert len(trials) == 3, trials
    (best,) = tuner.get_best_models(1)
    found = np.mean((best.predict(x, batch_size=16, verbose=0) - y) ** 2)
    assert abs(found - trials[0].score) < 1e-4 * max(found, 1), (found, trials[0].score)
    return {"score": trials[0].score}, best
