"""Models."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from models import mlp

layers = keras.layers
STEPS = 8


def two_towers():
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    joined = layers.Concatenate()([layers.Dense(4)(left), layers.Dense(4)(right)])
    value = layers.Dense(1, name="value")(joined)
    kind = layers.Dense(3, activation="softmax", name="kind")(joined)
    return [left, right], {"value": value, "kind": kind}


TWO_LOSSES = {
    "loss": {"value": "mse", "kind": "sparse_categorical_crossentropy"},
    "loss_weights": {"value": 1.0, "kind": 0.5},
    "metrics": {"value": ["mae"], "kind": ["accuracy"]},
}


@pytest.mark.feature("Several inputs and outputs, a loss and metrics for each")
def test_several_inputs_and_outputs(regression, classes, fits):
    x, y = regression
    inputs = {"left": x[:, :2], "right": x[:, 2:]}
    targets = {"value": y, "kind": classes[1]}

    def build():
        model = keras.Model(*two_towers())
        model.compile("adam", **TWO_LOSSES)
        return model

    model, history = fits(build, inputs, targets)
    names = {"loss", "value_loss", "kind_loss", "value_mae", "kind_accuracy"}
    assert names <= history.keys()

    plain = build()
    plain.set_weights(model.get_weights())
    results, expected = (
        each.evaluate(inputs, targets, verbose=0, return_dict=True)
        for each in (model, plain)
    )
    assert results == pytest.approx(expected, rel=1e-4)
    assert results["loss"] == pytest.approx(
        results["value_loss"] + 0.5 * results["kind_loss"], rel=1e-4
    )
    outputs = model.predict(inputs, batch_size=9, verbose=0)
    assert {name: out.shape for name, out in outputs.items()} == {
        "value": (64, 1),
        "kind": (64, 3),
    }


@pytest.mark.feature("Lists of inputs and outputs")
def test_lists_of_inputs_and_outputs(regression, fits):
    x, y = regression

    def build():
        inputs, outputs = two_towers()
        model = keras.Model(inputs, [outputs["value"], outputs["value"]])
        model.compile("adam", loss=["mse", "mae"])
        return model

    model, history = fits(build, [x[:, :2], x[:, 2:]], [y, y])
    assert len(history["loss"]) == 6
    one, other = model.predict([x[:, :2], x[:, 2:]], verbose=0)
    np.testing.assert_array_equal(one, other)


@pytest.mark.feature("Shared layers, and a model inside a model")
def test_shared_layers(regression, fits):
    x, y = regression

    def build():
        tower = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(4)])
        left, right = keras.Input((2,)), keras.Input((2,))
        joined = layers.Concatenate()([tower(left), tower(right)])
        model = keras.Model([left, right], layers.Dense(1)(joined))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    model, _ = fits(build, [x[:, :2], x[:, 2:]], y)
    assert len(model.trainable_variables) == 6


class Subclassed(keras.Model):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.hidden = layers.Dense(8, "tanh")
        self.dropout = layers.Dropout(dropout)
        self.out = layers.Dense(1)

    def call(self, x, training=False):
        return self.out(self.dropout(self.hidden(x), training=training))


@pytest.mark.in_gate("0.1")
@pytest.mark.feature("A subclassed model, built by its first batch")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_subclassed(regression, fits, lives_on_cluster, dropout):
    def build():
        model = Subclassed(dropout)
        model.compile("adam", "mse", metrics=["mae"])
        assert not model.built
        return model

    # Each replica of a synchronous strategy draws a mask of its own.
    model, _ = fits(build, *regression, exact=dropout == 0)
    lives_on_cluster(model)


@pytest.mark.feature("A `Sequential` model without an input shape")
def test_deferred_sequential(regression, fits, lives_on_cluster):
    def build():
        model = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    model, _ = fits(build, *regression)
    lives_on_cluster(model)


@pytest.mark.in_gate
@pytest.mark.feature("`add_loss`, `compute_loss`")
def test_losses_of_the_model(regression, fits):
    class Activity(layers.Layer):
        def call(self, x):
            self.add_loss(tf.constant(2.0))
            return x

    class Doubled(keras.Sequential):
        def compute_loss(self, *args, **kwargs):
            return 3.0 * super().compute_loss(*args, **kwargs)

    def build():
        model = Doubled([keras.Input((4,)), Activity(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model, _ = fits(build, *regression)
    x, y = regression
    squared_error = np.mean((model.predict(x, verbose=0) - y) ** 2)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(
        3.0 * (squared_error + 2.0), rel=1e-5
    )


@pytest.mark.feature("A Keras loss object inside `add_loss`")
def test_loss_in_a_layer(regression, fits):
    class Endpoint(layers.Layer):
        """Takes the targets as an input, and adds the loss itself."""

        def __init__(self):
            super().__init__()
            self.loss_fn = keras.losses.MeanSquaredError()

        def call(self, targets, y_pred):
            self.add_loss(self.loss_fn(targets, y_pred))
            return y_pred

    def build():
        x, targets = keras.Input((4,), name="x"), keras.Input((1,), name="targets")
        y_pred = Endpoint()(targets, layers.Dense(1)(x))
        model = keras.Model({"x": x, "targets": targets}, y_pred)
        model.compile("sgd")
        return model

    x, y = regression
    fits(build, {"x": x, "targets": y})


@pytest.mark.feature("A gradient that is None (an unused layer)")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_unused_layer(regression, fits):
    class Unused(Subclassed):
        def build(self, shape):
            super().build(shape)
            self.extra = self.add_weight(shape=(2,), initializer="ones", name="extra")

    def build():
        model = Unused()
        model.compile("adam", "mse")
        return model

    fits(build, *regression)


@pytest.mark.in_gate
@pytest.mark.feature("Two models under one strategy, taking turns")
def test_two_models(strategy, regression, runs_on_workers):
    with strategy.scope():
        one, other = mlp(), mlp(optimizer="adam")
    for _ in range(2):
        for model in (one, other):
            with runs_on_workers(STEPS):
                model.fit(*regression, batch_size=8, verbose=0)
    assert one.optimizer.iterations == other.optimizer.iterations == 2 * STEPS


@pytest.mark.feature("`keras.models.clone_model` in the scope")
def test_clone(regression, fits):
    def build():
        model = keras.models.clone_model(mlp())
        model.compile("sgd", "mse")
        return model

    fits(build, *regression)


class TrainedDense(TensorFlowTrainer, layers.Dense):
    """A layer with the `fit` of `keras.Model`, which it is not."""

    def __init__(self, units):
        layers.Dense.__init__(self, units)
        TensorFlowTrainer.__init__(self)


def test_a_layer_with_keras_trainer(strategy, regression, runs_on_workers):
    with strategy.scope():
        model = TrainedDense(1)
        model.compile("sgd", "mse")
    with runs_on_workers(2 * STEPS):
        losses = model.fit(*regression, batch_size=8, epochs=2, verbose=0).history
    assert losses["loss"][1] < losses["loss"][0]
    assert model.evaluate(*regression, verbose=0) < losses["loss"][1]
    assert model.predict(regression[0], verbose=0).shape == (64, 1)
