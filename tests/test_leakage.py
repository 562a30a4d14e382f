"""Leakage: an update is what a client would send, and its examples are found again."""

import importlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.adversarial import GradientInversion, LocalSteps, inferred_label

LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SEARCH = GradientInversion(iterations=200, smoothness=0.0)
LABELS = np.array([2, 0, 1, 2])


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(1)
    built = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    built.compile("sgd", LOGITS)
    return built


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(0).uniform(0, 1, (4, 6)).astype("float32")


def sent(network, x, y, steps=LocalSteps()):  # noqa: B008
    update = steps.update(network, tf.constant(x), tf.constant(y))
    return [each.numpy() for each in update]


def test_an_update_is_what_fit_changes(network, inputs):
    steps = LocalSteps(0.5, epochs=3, batch_size=3)  # The last batch of an epoch has 1.
    before = network.get_weights()
    update = sent(network, inputs, LABELS, steps)
    for one, other in zip(before, network.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    copy = keras.models.clone_model(network)
    copy.set_weights(before)
    copy.compile(keras.optimizers.SGD(0.5), LOGITS)
    copy.fit(inputs, LABELS, batch_size=3, epochs=3, shuffle=False, verbose=0)
    for old, new, change in zip(before, copy.get_weights(), update, strict=True):
        np.testing.assert_allclose(new - old, change, atol=1e-6)


def test_the_label_of_an_example_shows_in_the_bias(network, inputs):
    for x, y in zip(inputs, LABELS, strict=True):
        for steps in (LocalSteps(), LocalSteps(0.1, epochs=5)):
            update = sent(network, x[None], y[None], steps)
            assert inferred_label(update[-1]) == y
    with pytest.raises(ValueError, match=r"received shape \(2, 3\)"):
        inferred_label(np.zeros((2, 3)))


@pytest.mark.parametrize("steps", [LocalSteps(), LocalSteps(0.1, epochs=4)], ids=str)
def test_an_example_is_found_from_its_update(network, inputs, steps):
    update = sent(network, inputs[:1], LABELS[:1], steps)
    found, distance = SEARCH.reconstruct(network, update, LABELS[:1], steps)
    np.testing.assert_allclose(found, inputs[:1], atol=0.02)
    assert distance < 1e-3


def test_clipping_hides_nothing_and_noise_does(network, inputs):
    update = sent(network, inputs[:1], LABELS[:1])
    clipped = [0.01 * each for each in update]
    found, _ = SEARCH.reconstruct(network, clipped, LABELS[:1])
    np.testing.assert_allclose(found, inputs[:1], atol=0.02)
    rng = np.random.default_rng(1)
    noisy = [each + rng.normal(0, 1, each.shape).astype("float32") for each in update]
    found, distance = SEARCH.reconstruct(network, noisy, LABELS[:1])
    assert np.abs(found - inputs[:1]).max() > 0.1
    assert distance > 0.1


def test_smoothness_makes_neighbours_alike():
    keras.utils.set_random_seed(2)
    network = keras.Sequential(
        [keras.Input((5, 5, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    network.compile("sgd", LOGITS)
    x = np.random.default_rng(3).uniform(0, 1, (1, 5, 5, 1)).astype("float32")
    update = sent(network, x, np.array([1]))
    rough, smooth = (
        GradientInversion(100, smoothness=each).reconstruct(
            network, update, np.array([1])
        )[0]
        for each in (0.0, 1.0)
    )
    assert np.abs(np.diff(smooth, axis=1)).mean() < 0.5 * (
        np.abs(np.diff(rough, axis=1)).mean()
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSteps(0), "learning_rate=0"),
        (lambda: LocalSteps(epochs=0), "epochs=0"),
        (lambda: LocalSteps(batch_size=0), "received 0"),
        (lambda: GradientInversion(0), "iterations=0"),
        (lambda: GradientInversion(step_size=-1), "step_size=-1"),
        (lambda: GradientInversion(smoothness=-1), "smoothness=-1"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_update_of_another_model_is_refused(network, inputs):
    update = sent(network, inputs[:1], LABELS[:1])
    with pytest.raises(ValueError, match=r"shapes \[\(6, 16\), .*; received \[\(16,\)"):
        SEARCH.reconstruct(network, update[1:], LABELS[:1])


def test_the_page_shows_what_was_measured(monkeypatch):
    pytest.importorskip("mlxtend")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    for name in ("leakage", "evasion"):
        benchmark = importlib.import_module(name)
        measured = json.loads(benchmark.MEASURED.read_text())
        text = benchmark.PAGE.read_text()
        assert benchmark.page(text, measured) == text


def test_images_are_compared_with_those_they_resemble(monkeypatch):
    pytest.importorskip("mlxtend")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    benchmark = importlib.import_module("leakage")
    true = np.random.default_rng(4).uniform(0, 1, (3, 4, 4, 1))
    np.testing.assert_array_equal(benchmark.matched(true[[2, 0, 1]], true), true)
    assert benchmark.psnr(true + 0.1, true) == pytest.approx(20)
