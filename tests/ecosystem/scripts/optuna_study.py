"""Optuna: a study whose trials train under the strategy, and are pruned."""

import keras
import numpy as np
import optuna

SAME_WEIGHTS = True
WITHIN = 0.5


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    models = {}

    def objective(trial):
        with strategy.scope():
            hidden = keras.layers.Dense(trial.suggest_int("units", 2, 8), "relu")
            model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
            rate = trial.suggest_float("rate", 1e-3, 0.1, log=True)
            model.compile(keras.optimizers.SGD(rate), "mse")
        options = {"batch_size": 16, "shuffle": False, "verbose": 0}
        for epoch in range(3):
            model.fit(x, y, initial_epoch=epoch, epochs=epoch + 1, **options)
            loss = model.evaluate(x, y, batch_size=16, verbose=0)
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        models[trial.number] = model
        return loss

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
    )
    study.optimize(objective, n_trials=4)
    return {"loss": study.best_value}, models[study.best_trial.number]
