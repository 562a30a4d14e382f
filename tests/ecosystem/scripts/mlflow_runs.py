"""MLflow: autolog of `fit`; the chief alone logs."""

import os

import keras
import mlflow
import numpy as np

import tfdist

SAME_WEIGHTS = True
WITHIN = 0.2


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")

    is_chief = getattr(strategy.extended, "worker_index", 0) == 0
    if is_chief:
        mlflow.set_tracking_uri(f"sqlite:///{os.path.join(directory, 'runs.db')}")
        mlflow.create_experiment("trained", artifact_location=directory)
        mlflow.set_experiment("trained")
        # A signature has what `predict` returns, which needs all workers.
        in_step = isinstance(strategy, tfdist.MultiWorkerMirroredStrategy)
        mlflow.tensorflow.autolog(log_model_signatures=not in_step)
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    loss = model.evaluate(x, y, batch_size=16, verbose=0)
    if is_chief:
        mlflow.tensorflow.autolog(disable=True)
        (run,) = mlflow.search_runs(["1"], output_format="list")
        assert run.data.metrics["loss"] < 1, run.data
        (logged,) = mlflow.search_logged_models(output_format="list")
        loaded = mlflow.tensorflow.load_model(logged.model_uri)
        expected = x @ model.layers[0].kernel.numpy() + model.layers[0].bias.numpy()
        np.testing.assert_allclose(loaded(x), expected, rtol=1e-4, atol=1e-5)
    return {"loss": loss}, model
