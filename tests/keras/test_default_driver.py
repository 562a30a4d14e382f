"""What a strategy gets from `DefaultDriver`, and what it hears of its mistakes."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras import driver, hooks
from tfdist.keras.default_driver import DefaultDriver

X = np.arange(80, dtype="float32").reshape(40, 2) / 80
Y = X.sum(1, keepdims=True)


class Local(DefaultDriver):
    def train_step_function(self, model):
        @tf.function
        def step(batch):
            return self.strategy.run(model.train_step, args=(batch,))

        return step


def model_of(driver, **options):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    strategy.fit_driver = driver(strategy) if callable(driver) else driver
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_every_batch_is_taken_whatever_an_execution_has(steps):
    model = model_of(Local, steps_per_execution=steps)
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 20
    keras.utils.set_random_seed(1)
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    plain.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_what_python_has_warned_of_it_does_not_again_after_a_model_is_built():
    class Odd(keras.layers.Layer):
        def build(self, shape):
            warnings.warn("odd shape", stacklevel=1)

        def call(self, x):
            return x

    def of_unknown_length():
        return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda *_: True)

    model = model_of(Local)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            model.fit(of_unknown_length().batch(4), verbose=0)
        with model.distribute_strategy.scope():
            model = keras.Sequential([Odd(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
    texts = [str(each.message) for each in told]
    assert sum("ran out of data" in each for each in texts) == 1
    assert "odd shape" in texts


@pytest.mark.parametrize(
    "validation", [{"validation_split": 0.5}, {"validation_data": (X, Y)}]
)
def test_a_driver_that_cannot_validate_says_so_before_the_first_step(validation):
    model = model_of(Local)
    with pytest.raises(
        NotImplementedError, match="OneDeviceStrategy does not evaluate"
    ):
        model.fit(X, Y, verbose=0, **validation)
    assert int(model.optimizer.iterations) == 0
    with pytest.raises(NotImplementedError, match="Local, has no predict_function"):
        model.predict(X, verbose=0)


class Bare:
    in_unison = False

    def train_function(self, model):
        raise AssertionError


def test_a_driver_that_lacks_methods_is_named():
    hooks.install()  # As the first driver does that has them all.
    model = model_of(Bare())
    with pytest.raises(TypeError, match="a Bare, lacks test_function.*DefaultDriver"):
        model.fit(X, Y, verbose=0)


def test_a_default_driver_has_all_that_the_patches_call():
    ours = {name for name in vars(DefaultDriver) if not name.startswith("_")}
    steps = {"train_step_function", "test_step_function"}
    assert set(driver._METHODS) | {"in_unison"} == ours - steps


class ListOfBatches(Local):
    def data(self, adapter):
        return [(X, Y)]


class NoFunction(Local):
    def train_function(self, model):
        return None


class NoLogs(Local):
    def train_step_function(self, model):
        return lambda batch: None


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (ListOfBatches, "data must return a tf.data.Dataset.*received list"),
        (NoFunction, "train_function must return a function; received None"),
        (NoLogs, "must return a dict of logs.*received None"),
    ],
)
def test_what_a_driver_returns_by_mistake_is_named(driver, message):
    model = model_of(driver)
    with pytest.raises(TypeError, match=message):
        model.fit(X, Y, verbose=0)
