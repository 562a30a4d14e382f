"""What a strategy gets from `DefaultDriver`, and what it hears of its mistakes."""

import contextlib
import functools
import signal
import sys
import traceback
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils.python_utils import pythonify_logs

import tfdist
from tfdist._support.endings import ending_in_the_program
from tfdist.keras import building, driver, hooks
from tfdist.keras.default_driver import DefaultDriver

from ..support.raising import raises

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


@pytest.mark.parametrize("step", ["of Keras", "of its own"])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_model_is_built_by_inputs_of_the_kind_that_its_call_needs(kind, step):
    class OfRows(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            is_ragged = kind == "ragged"
            return self.dense(x.to_tensor() if is_ragged else tf.sparse.to_dense(x))

    class OwnStep(OfRows):
        def train_step(self, data):
            return super().train_step(data)

    x = tf.RaggedTensor.from_tensor(X) if kind == "ragged" else tf.sparse.from_dense(X)
    strategy = model_of(Local).distribute_strategy
    with strategy.scope():
        model = OfRows() if step == "of Keras" else OwnStep()
        model.dense.build((None, 2))
        model.compile("sgd", "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(4)
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]


def test_an_optimizer_at_the_address_of_an_earlier_one_is_built(monkeypatch):
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    strategy = model_of(Local).distribute_strategy
    with strategy.scope():
        model = OwnStep([keras.Input((2,)), keras.layers.Dense(1)])
    # Python reuses addresses, but nobody can say when.
    monkeypatch.setattr(building, "id", lambda _: 0, raising=False)
    for name in ("sgd", "adam"):
        model.compile(name, "mse")
        with building.in_stage(building.TRAIN):
            strategy.fit_driver.build(model, (X[:4], Y[:4]))
        assert model.optimizer.built


def test_metrics_that_were_compiled_away_are_not_missed():
    class OneMoreToTrain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.more = keras.layers.Dense(1), keras.layers.Dense(1)

        def call(self, x, training=False):
            return self.dense(x) + (self.more(x) if training else 0.0)

    strategy = model_of(Local).distribute_strategy
    with strategy.scope():
        model = OneMoreToTrain()
    for name in ("mae", "mse"):
        model.compile("sgd", "mse", metrics=[name])
        with building.in_stage(building.TRAIN):
            strategy.fit_driver.build(model, (X[:4], Y[:4]))
        step = tf.function(building.step_of(model, building.TRAIN))
        assert name in strategy.run(step, [(X[:4], Y[:4])])


@pytest.mark.parametrize(
    "validation", [{"validation_split": 0.5}, {"validation_data": (X, Y)}]
)
def test_a_driver_that_cannot_validate_says_so_before_the_first_step(validation):
    model = model_of(Local)
    with raises(NotImplementedError, "OneDeviceStrategy", "evaluate"):
        model.fit(X, Y, verbose=0, **validation)
    assert int(model.optimizer.iterations) == 0
    with raises(NotImplementedError, "Local", "predict_function"):
        model.predict(X, verbose=0)


class Bare:
    in_unison = False

    def train_function(self, model):
        raise AssertionError


def test_a_driver_that_lacks_methods_is_named():
    hooks.install()  # As the first driver does that has them all.
    model = model_of(Bare())
    with raises(TypeError, "Bare", "test_function", "DefaultDriver"):
        model.fit(X, Y, verbose=0)


def test_a_default_driver_has_all_that_the_patches_call():
    ours = {name for name in vars(DefaultDriver) if not name.startswith("_")}
    steps = {"train_step_function", "test_step_function"}
    assert set(driver._METHODS) | {"in_unison", "calls"} == ours - steps


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


def calls_of(error):
    """The functions of a traceback, without Keras's, and with tfdist's as such."""
    ours = str(Path(tfdist.__file__).parent)
    return [
        "tfdist" if frame.f_code.co_filename.startswith(ours) else frame.f_code.co_name
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if "/keras/src/" not in frame.f_code.co_filename
    ]


class Raises(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        self.deeper()

    def deeper(self):
        raise self.error


def test_a_traceback_lacks_the_frames_of_tfdist_and_has_all_of_the_program():
    model = model_of(Local)
    # One frame raises it again, as in Keras.
    with raises(ValueError, "axis -1") as caught:
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
    assert calls_of(caught.value)[1:] == ["tfdist"]
    with raises(OSError, "mine") as caught:
        model.fit(X, Y, verbose=0, callbacks=[Raises(OSError("mine"))])
    calls = calls_of(caught.value)[1:]
    assert calls == ["tfdist", "on_train_batch_end", "deeper"]
    endless = Raises(None)
    endless.deeper = lambda: endless.deeper()
    with raises(RecursionError, "maximum recursion") as caught:
        model.fit(X, Y, verbose=0, callbacks=[endless])
    assert calls_of(caught.value)[1:4] == ["tfdist", "on_train_batch_end", "<lambda>"]
    keras.config.disable_traceback_filtering()
    try:
        with raises(OSError, "mine") as caught:
            model.fit(X, Y, verbose=0, callbacks=[Raises(OSError("mine"))])
    finally:
        keras.config.enable_traceback_filtering()
    assert calls_of(caught.value).count("tfdist") > 2


def test_an_error_of_tfdist_is_short_without_a_strategy_too():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    lost = tfdist.errors.LostVariablesError("lost")
    with pytest.raises(tfdist.errors.LostVariablesError) as caught:
        model.fit(X, Y, verbose=0, callbacks=[Raises(lost)])
    assert calls_of(caught.value)[1:] == ["tfdist", "on_train_batch_end", "deeper"]


def test_an_error_keeps_its_cause():
    def method(self):
        raise OSError("mine") from KeyError("the cause")

    shortened = ending_in_the_program(method, lambda *_: False, lambda _: True)
    with raises(OSError, "mine") as caught:
        shortened(None)
    assert isinstance(caught.value.__cause__, KeyError)


class Interrupts:
    """A number that Keras cannot convert before an interrupt comes."""

    __float__ = functools.partial(signal.raise_signal, signal.SIGINT)


def test_an_interrupt_that_keras_catches_ends_fit_after_the_step():
    model = model_of(Local)
    fit = functools.partial(model.fit, X, Y, batch_size=20, verbose=0)
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: pythonify_logs({"a": Interrupts()})
    )
    with pytest.raises(KeyboardInterrupt):
        fit(callbacks=[callback])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert int(model.optimizer.iterations) == 1
    fit()  # It does not come again.


def test_an_interrupt_that_a_callback_catches_is_its_own():
    def catch(batch, logs):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    model = model_of(Local)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=catch)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
    assert int(model.optimizer.iterations) == 10


def test_an_interrupt_that_nobody_catches_is_one_line(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    model = model_of(Local)
    for _ in range(2):
        callbacks = [Raises(KeyboardInterrupt("nothing was saved"))]
        with pytest.raises(KeyboardInterrupt) as caught:
            model.fit(X, Y, verbose=0, callbacks=callbacks)
        error = caught.value
        assert calls_of(error)[1:] == ["tfdist", "on_train_batch_end", "deeper"]
        sys.excepthook(type(error), error, error.__traceback__)
        assert capsys.readouterr().err == "interrupted in fit: nothing was saved\n"
    # Other errors are shown as before.
    other = OSError("other")
    sys.excepthook(OSError, other, None)
    assert shown == [(OSError, other, None)]


def test_the_report_of_an_error_that_nobody_catches_has_the_program_alone(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    with raises(OSError, "mine") as caught:
        model_of(Local).fit(X, Y, verbose=0, callbacks=[Raises(OSError("mine"))])
    error = caught.value
    assert calls_of(error)[1] == "tfdist"
    sys.excepthook(OSError, error, error.__traceback__)
    assert shown == [(OSError, error, error.__traceback__)]
    assert calls_of(error)[1:] == ["on_train_batch_end", "deeper"]


def test_names_of_metrics_in_place_of_the_weights_of_losses_are_named():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", ["mae"])
    with raises(ValueError, "loss_weights", "['mae']", "metrics="):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ParameterServerStrategy", {}),
        ("MultiWorkerMirroredStrategy", {}),
        ("RingStrategy", {}),
        ("LocalUpdateStrategy", {"local_steps": 2}),
    ],
)
def test_an_error_of_a_constructor_shows_the_program_alone(name, options, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with raises(ValueError, "TF_CONFIG") as caught:
        getattr(tfdist, name)(**options)
    assert calls_of(caught.value)[1:] == ["tfdist"]
