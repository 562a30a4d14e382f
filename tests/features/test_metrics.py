"""Metrics: `evaluate` matches Keras in one process."""

import keras
import numpy as np
import pytest
from models import assert_alike, classifier, compiled, mlp, row

metrics = keras.metrics
layers = keras.layers


@pytest.fixture
def binary(regression):
    x, y = regression
    return x, (y > 0.5).astype("float32")


def sigmoid_model(**compile):
    dense = layers.Dense(1, activation="sigmoid")
    return compiled(dense, loss="binary_crossentropy", **compile)


def one_hot_model(**compile):
    dense = layers.Dense(3, activation="softmax")
    return compiled(dense, loss="categorical_crossentropy", **compile)


BINARY = [
    row("BinaryAccuracy", metrics.BinaryAccuracy),
    row("AUC", lambda: metrics.AUC(num_thresholds=50)),
    row("Precision", lambda: metrics.Precision(thresholds=[0.3, 0.7])),
    row("Recall", metrics.Recall),
    row("TruePositives", metrics.TruePositives, "`TruePositives` and similar metrics"),
    row(
        "SensitivityAtSpecificity",
        lambda: metrics.SensitivityAtSpecificity(0.5, num_thresholds=50),
        "`SensitivityAtSpecificity` and similar metrics",
    ),
    row("BinaryIoU", metrics.BinaryIoU),
]

REGRESSION = [
    row("RootMeanSquaredError", metrics.RootMeanSquaredError),
    row("R2Score", metrics.R2Score),
    row("PearsonCorrelation", lambda: metrics.PearsonCorrelation(axis=0)),
]

ONE_HOT = [
    row("F1Score", lambda: metrics.F1Score(average="macro")),
    row(
        "OneHotMeanIoU", lambda: metrics.OneHotMeanIoU(3), "`MeanIoU`, `OneHotMeanIoU`"
    ),
    row("CategoricalAccuracy", metrics.CategoricalAccuracy),
    row("TopKCategoricalAccuracy", lambda: metrics.TopKCategoricalAccuracy(2)),
]


def assert_as_in_one_process(strategy, build, make, x, y):
    with strategy.scope():
        model = build(metrics=[make()], steps_per_execution=2)
    plain = build(metrics=[make()])
    plain.set_weights(model.get_weights())
    results = model.evaluate(x, y, batch_size=9, verbose=0)
    expected = plain.evaluate(x, y, batch_size=9, verbose=0)
    assert_alike(results, expected, rtol=1e-4)


@pytest.mark.in_gate("AUC")
@pytest.mark.parametrize("make", BINARY)
def test_binary(strategy, binary, make):
    assert_as_in_one_process(strategy, sigmoid_model, make, *binary)


@pytest.mark.parametrize("make", REGRESSION)
def test_regression(strategy, regression, make):
    assert_as_in_one_process(strategy, mlp, make, *regression)


@pytest.mark.parametrize("make", ONE_HOT)
def test_one_hot(strategy, classes, make):
    x, y = classes
    one_hot = np.eye(3, dtype="float32")[y]
    assert_as_in_one_process(strategy, one_hot_model, make, x, one_hot)


@pytest.mark.feature("`metrics=['accuracy']`")
def test_accuracy(strategy, classes):
    x, y = classes
    with strategy.scope():
        model = classifier(metrics=["accuracy"])
    _, accuracy = model.evaluate(x, y, batch_size=7, verbose=0)
    predicted = model.predict(x, verbose=0).argmax(axis=1)
    assert accuracy == pytest.approx(np.mean(predicted == y))


@pytest.mark.in_gate
@pytest.mark.feature("Several metrics at once, by name, by function and by object")
def test_several(strategy, regression):
    def largest(y, y_pred):
        return keras.ops.max(keras.ops.abs(y - y_pred), axis=-1)

    x, y = regression
    with strategy.scope():
        model = mlp(metrics=["mae", largest, metrics.MeanSquaredError(name="squares")])
    loss, mae, most, squares = model.evaluate(x, y, batch_size=10, verbose=0)
    error = model.predict(x, verbose=0) - y
    assert [mae, most] == pytest.approx([abs(error).mean()] * 2, rel=1e-5)
    assert [loss, squares] == pytest.approx([(error**2).mean()] * 2, rel=1e-5)


@pytest.mark.in_gate
@pytest.mark.feature("Counts are exact in `fit` too")
def test_counts_are_exact_in_fit(strategy, binary, runs_on_workers):
    x, y = binary
    with strategy.scope():
        model = sigmoid_model(
            metrics=[
                metrics.TruePositives(name="tp"),
                metrics.FalseNegatives(name="fn"),
                metrics.TrueNegatives(name="tn"),
                metrics.FalsePositives(name="fp"),
            ]
        )
    with runs_on_workers(4 * 16):
        history = model.fit(x, y, epochs=4, batch_size=4, verbose=0).history
    positives = np.add(history["tp"], history["fn"])
    negatives = np.add(history["tn"], history["fp"])
    np.testing.assert_array_equal(positives, [y.sum()] * 4)
    np.testing.assert_array_equal(negatives, [64 - y.sum()] * 4)
