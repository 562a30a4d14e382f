"""Training, evaluation, prediction."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import SampleCount, assert_alike, classifier, compiled, mlp

import tfdist

BATCH_SIZE, STEPS = 8, 8


def same_outside(model, build, **compile):
    """A model of plain Keras, on the chief, with the same weights."""
    plain = build(**compile)
    plain.set_weights(model.get_weights())
    return plain


@pytest.mark.in_gate
@pytest.mark.feature("`fit`")
def test_fit(regression, trains, lives_on_cluster):
    def build():
        return mlp(optimizer=keras.optimizers.Adam(0.05), metrics=["mae"])

    model, history = trains(build, *regression, epochs=10, steps=10 * STEPS)
    assert {"loss", "mae"} <= history.keys()
    assert len(history["loss"]) == 10
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert model.optimizer.iterations == 10 * STEPS
    lives_on_cluster(model)


@pytest.mark.in_gate
@pytest.mark.parameter_server
def test_both_workers_train(strategy, regression):
    before = strategy.worker_report().steps
    with strategy.scope():
        model = mlp()
    model.fit(*regression, batch_size=1, epochs=5, verbose=0)
    ran = np.subtract(strategy.worker_report().steps, before)
    assert sum(ran) == 5 * 64
    assert min(ran) > 0


@pytest.mark.in_gate
@pytest.mark.feature("`evaluate`")
def test_evaluate(strategy, regression, call_counter):
    x, y = regression
    layers = lambda: (keras.layers.Dense(8, "tanh"), keras.layers.Dense(1))  # noqa: E731
    with strategy.scope():
        model = compiled(call_counter, *layers(), metrics=["mae"])
    plain = same_outside(model, lambda **c: compiled(*layers(), **c), metrics=["mae"])
    results = model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert call_counter.total() == 7
    expected = plain.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert results == pytest.approx(expected, rel=1e-5)


@pytest.mark.in_gate("3")
@pytest.mark.feature("`predict`")
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_predict_keeps_the_order(strategy, call_counter, steps_per_execution):
    x = np.arange(4 * 61, dtype="float32").reshape(61, 4)
    with strategy.scope():
        model = compiled(call_counter, steps_per_execution=steps_per_execution)
    prediction = model.predict(x, batch_size=4, verbose=0)
    assert call_counter.total() == 16
    np.testing.assert_array_equal(prediction, x)


@pytest.mark.in_gate
@pytest.mark.feature("`train_on_batch`")
def test_train_on_batch(strategy, regression, runs_on_workers):
    with strategy.scope():
        model = mlp(metrics=["mae"])
    plain = same_outside(model, mlp, metrics=["mae"])
    for _ in range(3):
        with runs_on_workers(1):
            losses = model.train_on_batch(*regression)
        expected = plain.train_on_batch(*regression)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    logs = model.train_on_batch(*regression, return_dict=True)
    assert logs.keys() == {"loss", "mae"}
    plain.train_on_batch(*regression)
    assert_alike(model.get_weights(), plain.get_weights(), rtol=1e-5, atol=1e-6)


@pytest.mark.feature("`test_on_batch`")
def test_test_on_batch(strategy, regression, call_counter):
    with strategy.scope():
        model = compiled(call_counter, keras.layers.Dense(1))
    x, y = regression
    loss = model.test_on_batch(x, y)
    assert call_counter.total() == 1
    kernel, bias = model.get_weights()
    assert loss == pytest.approx(np.mean((x @ kernel + bias - y) ** 2), rel=1e-5)


@pytest.mark.feature("`predict_on_batch`")
def test_predict_on_batch(strategy, regression, call_counter):
    with strategy.scope():
        model = compiled(call_counter, keras.layers.Dense(2))
    x, _ = regression
    prediction = model.predict_on_batch(x)
    assert call_counter.total() == 1
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(prediction, x @ kernel + bias, rtol=1e-5, atol=1e-6)


@pytest.mark.in_gate
@pytest.mark.feature("`validation_data`")
def test_validation_data(strategy, regression, runs_on_workers):
    x, y = regression
    with strategy.scope():
        model = mlp(metrics=[SampleCount()])
    with runs_on_workers(2 * STEPS):
        history = model.fit(
            x, y, validation_data=(x[:30], y[:30]), epochs=2, batch_size=8, verbose=0
        ).history
    assert history["samples"] == [64, 64]
    assert history["val_samples"] == [30, 30]
    loss, _ = model.evaluate(x[:30], y[:30], verbose=0)
    assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.feature("`validation_split`, `validation_freq`")
def test_validation_split(strategy, regression, runs_on_workers):
    with strategy.scope():
        model = mlp(metrics=[SampleCount()])
    with runs_on_workers(4 * 6):
        history = model.fit(
            *regression,
            validation_split=0.25,
            validation_freq=2,
            epochs=4,
            batch_size=8,
            verbose=0,
        ).history
    assert history["samples"] == [48] * 4
    assert history["val_samples"] == [16] * 2


@pytest.mark.in_gate("3")
@pytest.mark.feature("`steps_per_execution`")
@pytest.mark.parametrize("steps_per_execution", [2, 3, 8, 20])
def test_steps_per_execution(regression, trains, steps_per_execution):
    def build():
        return mlp(metrics=[SampleCount()], steps_per_execution=steps_per_execution)

    x, y = regression
    model, history = trains(build, x[:60], y[:60], epochs=2, steps=2 * STEPS)
    assert history["samples"] == [60, 60]
    assert model.optimizer.iterations == 2 * STEPS
    assert history["loss"][1] < history["loss"][0]
    assert model.evaluate(x[:60], y[:60], batch_size=8, verbose=0)[1] == 60


@pytest.mark.in_gate
@pytest.mark.parameter_server
def test_one_function_is_sent_for_each_number_of_steps(strategy, regression, sent):
    with strategy.scope():
        model = mlp(steps_per_execution=3)
    model.fit(*regression, batch_size=8, epochs=2, verbose=0)
    # Of 8 batches, the last two travel one by one.
    assert len(sent.functions) == 2


@pytest.mark.feature("`initial_epoch`, `steps_per_epoch` of a finite dataset")
def test_initial_epoch(regression, trains):
    data = tf.data.Dataset.from_tensor_slices(regression).batch(8)
    fit = {"initial_epoch": 1, "epochs": 3, "steps_per_epoch": 4}
    model, _ = trains(mlp, data, batch_size=None, steps=2 * 4, **fit)
    assert model.history.epoch == [1, 2]


@pytest.mark.feature("`class_weight`")
def test_class_weight(strategy, classes, runs_on_workers):
    x, y = classes
    with strategy.scope():
        model = classifier(optimizer=keras.optimizers.SGD(0.0))
    plain = same_outside(model, classifier)
    with runs_on_workers(STEPS):
        history = model.fit(
            x, y, class_weight={0: 0.0, 1: 1.0, 2: 5.0}, batch_size=8, verbose=0
        ).history
    weight = np.float32([0.0, 1.0, 5.0])[y]
    expected = plain.evaluate(x, y, sample_weight=weight, verbose=0)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.in_gate
@pytest.mark.feature("`sample_weight`")
def test_sample_weight(strategy, regression, runs_on_workers):
    x, y = regression
    weight = np.linspace(0, 1, 64, dtype="float32")
    with strategy.scope():
        model = mlp(optimizer=keras.optimizers.SGD(0.0))
    squared_error = (model.predict(x, verbose=0) - y)[:, 0] ** 2
    with runs_on_workers(STEPS):
        history = model.fit(x, y, sample_weight=weight, batch_size=8, verbose=0).history
    expected = pytest.approx(np.mean(weight * squared_error), rel=1e-5)
    assert history["loss"][0] == expected
    assert model.evaluate(x, y, sample_weight=weight, verbose=0) == expected


@pytest.mark.feature("`weighted_metrics`")
def test_weighted_metrics(strategy, regression):
    x, y = regression
    weight = np.linspace(0, 1, 64, dtype="float32")
    with strategy.scope():
        model = mlp(
            optimizer=keras.optimizers.SGD(0.0),
            metrics=["mae"],
            weighted_metrics=["mse"],
        )
    error = (model.predict(x, verbose=0) - y)[:, 0]
    logs = model.fit(x, y, sample_weight=weight, batch_size=8, verbose=0).history
    assert logs["mae"][0] == pytest.approx(np.mean(abs(error)), rel=1e-5)
    weighted = np.sum(weight * error**2) / np.sum(weight)
    assert logs["mse"][0] == pytest.approx(weighted, rel=1e-5)


@pytest.mark.feature("`model.stop_training`")
def test_stop_training(strategy, regression, runs_on_workers):
    with strategy.scope():
        model = mlp()

    def stop(batch, logs):
        model.stop_training = batch == 2

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with runs_on_workers(3):
        model.fit(*regression, batch_size=8, callbacks=[callback], verbose=0)


@pytest.mark.feature("A second `fit`, and `compile` again")
def test_fit_again(strategy, regression, runs_on_workers):
    with strategy.scope():
        model = mlp()
    for _ in range(2):
        with runs_on_workers(STEPS):
            model.fit(*regression, batch_size=8, verbose=0)
    assert model.optimizer.iterations == 2 * STEPS
    with strategy.scope():
        model.compile("adam", "mae")
    with runs_on_workers(STEPS):
        model.fit(*regression, batch_size=8, verbose=0)
    assert model.optimizer.iterations == STEPS


@pytest.mark.feature("Freezing layers between two fits")
def test_freezing(strategy, regression):
    with strategy.scope():
        model = mlp()
        model.layers[0].trainable = False
        model.compile("sgd", "mse")
    frozen, moving = (layer.get_weights() for layer in model.layers)
    model.fit(*regression, batch_size=8, verbose=0)
    np.testing.assert_array_equal(frozen[0], model.layers[0].get_weights()[0])
    assert not np.array_equal(moving[0], model.layers[1].get_weights()[0])


@pytest.mark.parameter_server
@pytest.mark.feature("A loop of your own over a `ClusterCoordinator`")
def test_custom_loop(strategy):
    with strategy.scope():
        weight = tf.Variable(0.0)

    @tf.function
    def step():
        def replica_fn():
            weight.assign_add(1.0)

        strategy.run(replica_fn)

    for _ in range(20):
        strategy.coordinator.schedule(step)
    strategy.coordinator.join()
    assert weight.device.startswith("/job:ps")
    assert weight.numpy() == 20.0


@pytest.mark.feature(
    "A model built outside the scope trains on the chief only",
    multi_worker=("approximate", "each worker trains its own model, with a warning"),
)
def test_plain_keras_is_as_before(strategy, regression, runs_on_workers, caplog):
    model = mlp()
    with runs_on_workers(0):
        history = model.fit(*regression, batch_size=8, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    for variable in model.variables:
        assert not isinstance(variable.value, tf.distribute.DistributedValues)
    if isinstance(strategy, tfdist.MultiWorkerMirroredStrategy):
        assert "this process trains it alone" in caplog.text
    else:
        assert all("/job:chief" in v.value.device for v in model.variables)


@pytest.mark.in_gate
@pytest.mark.parameter_server
@pytest.mark.feature("An exception leaves no step in flight")
def test_exception_leaves_no_step_under_way(strategy, regression, monkeypatch):
    x, y = regression

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 20:
                raise KeyboardInterrupt

    with strategy.scope():
        model = mlp()
    before = sum(strategy.worker_report().steps)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=1, callbacks=[Interrupt()], verbose=0)
    steps = int(model.optimizer.iterations)
    assert steps == sum(strategy.worker_report().steps) - before
    assert strategy.coordinator.done()
    assert int(model.optimizer.iterations) == steps == 21


GUIDE = Path(__file__).parents[2] / "docs" / "custom.md"


@pytest.mark.in_gate
@pytest.mark.parameter_server
@pytest.mark.feature("The training loop in the guide")
def test_the_loop_of_the_guide(strategy, regression, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    (loop,) = (block for block in blocks if "strategy.run(" in block)
    dataset = tf.data.Dataset.from_tensor_slices(regression).batch(BATCH_SIZE)
    names = {"keras": keras, "tf": tf, "strategy": strategy, "dataset": dataset}
    exec(loop, names)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert names["optimizer"].iterations == 3 * STEPS


@pytest.mark.parameter_server
@pytest.mark.feature(
    "The other workers continue while one is slow or stopped", rounds="-"
)
def test_straggler(run_program, pytestconfig, tmp_path):
    """It resumes after the other worker has run nearly all steps."""
    policy = pytestconfig.getoption("strategy")
    result = run_program("stopped_worker.py", "straggler", policy, tmp_path)
    assert "stragglers 1\n" in result.stdout, result.stderr
