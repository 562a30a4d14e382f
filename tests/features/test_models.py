"""Models, and steps of your own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import SampleCount, mlp

layers = keras.layers
STEPS = 8


@pytest.fixture
def fits(runs_on_workers):
    """Asserts that the workers train the model, and that its loss falls."""

    def fit(model, *data, epochs=6, **options):
        with runs_on_workers(epochs * STEPS):
            history = model.fit(
                *data, epochs=epochs, batch_size=8, verbose=0, **options
            ).history
        assert history["loss"][-1] < history["loss"][0]
        return history

    return fit


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
def test_several_inputs_and_outputs(strategy, regression, classes, fits):
    x, y = regression
    inputs = {"left": x[:, :2], "right": x[:, 2:]}
    targets = {"value": y, "kind": classes[1]}
    with strategy.scope():
        model = keras.Model(*two_towers())
        model.compile("adam", **TWO_LOSSES)
    history = fits(model, inputs, targets)
    names = {"loss", "value_loss", "kind_loss", "value_mae", "kind_accuracy"}
    assert history.keys() == names

    plain = keras.Model(*two_towers())
    plain.compile("adam", **TWO_LOSSES)
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
def test_lists_of_inputs_and_outputs(strategy, regression, fits):
    x, y = regression
    with strategy.scope():
        inputs, outputs = two_towers()
        model = keras.Model(inputs, [outputs["value"], outputs["value"]])
        model.compile("adam", loss=["mse", "mae"])
    history = fits(model, [x[:, :2], x[:, 2:]], [y, y])
    assert len(history["loss"]) == 6
    one, other = model.predict([x[:, :2], x[:, 2:]], verbose=0)
    np.testing.assert_array_equal(one, other)


@pytest.mark.feature("Shared layers, and a model inside of a model")
def test_shared_layers(strategy, regression, fits):
    x, y = regression
    with strategy.scope():
        tower = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(4)])
        left, right = keras.Input((2,)), keras.Input((2,))
        joined = layers.Concatenate()([tower(left), tower(right)])
        model = keras.Model([left, right], layers.Dense(1)(joined))
        model.compile(keras.optimizers.Adam(0.01), "mse")
    fits(model, [x[:, :2], x[:, 2:]], y)
    assert len(model.trainable_variables) == 6


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, "tanh")
        self.dropout = layers.Dropout(0.1)
        self.out = layers.Dense(1)

    def call(self, x, training=False):
        return self.out(self.dropout(self.hidden(x), training=training))


@pytest.mark.feature("A subclassed model, built by its first batch")
def test_subclassed(strategy, regression, fits):
    with strategy.scope():
        model = Subclassed()
        model.compile("adam", "mse", metrics=["mae"])
    assert not model.built
    fits(model, *regression)
    assert all(v.value.device.startswith("/job:ps") for v in model.variables)


@pytest.mark.feature("A `Sequential` model without an input shape")
def test_deferred_sequential(strategy, regression, fits):
    with strategy.scope():
        model = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])
        model.compile("adam", "mse")
    fits(model, *regression)
    assert all(v.value.device.startswith("/job:ps") for v in model.variables)


@pytest.mark.feature("`add_loss`, `compute_loss`")
def test_losses_of_the_model(strategy, regression, fits):
    class Activity(layers.Layer):
        def call(self, x):
            self.add_loss(tf.constant(2.0))
            return x

    class Doubled(keras.Sequential):
        def compute_loss(self, *args, **kwargs):
            return 3.0 * super().compute_loss(*args, **kwargs)

    with strategy.scope():
        model = Doubled([keras.Input((4,)), Activity(), layers.Dense(1)])
        model.compile("sgd", "mse")
    fits(model, *regression)
    x, y = regression
    squared_error = np.mean((model.predict(x, verbose=0) - y) ** 2)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(
        3.0 * (squared_error + 2.0), rel=1e-5
    )


class CustomStep(keras.Model):
    """The train step and test step that the Keras guide writes out."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(100.0)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


@pytest.mark.feature("A `train_step` of your own")
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_train_step(strategy, regression, fits, steps_per_execution):
    with strategy.scope():
        x = keras.Input((4,))
        model = CustomStep(x, layers.Dense(1)(x))
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    fits(model, *regression)
    assert model.optimizer.iterations == 6 * STEPS


@pytest.mark.feature("A `test_step` of your own")
def test_test_step(strategy, regression):
    with strategy.scope():
        x = keras.Input((4,))
        model = CustomStep(x, layers.Dense(1)(x))
        model.compile("sgd", "mse")
    assert model.evaluate(*regression, verbose=0) == 100.0
    history = model.fit(*regression, validation_data=regression, verbose=0).history
    assert history["val_loss"] == [100.0]


class ExtraLogs(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "largest": tf.reduce_max(data[1]), "two": tf.constant([1, 2])}


@pytest.mark.feature(
    "Other values in the logs of a `train_step`",
    "approximate",
    "as always then, an epoch's logs are those of its last step",
)
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_extra_logs(strategy, regression, runs_on_workers, steps_per_execution):
    x, y = regression
    y[-8:] = 50.0
    with strategy.scope():
        model = ExtraLogs([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    # The loss is that of one batch too, and depends on which updates it was after.
    with runs_on_workers(6 * STEPS):
        fit = model.fit(x, y, epochs=6, batch_size=8, verbose=0, shuffle=False)
    history = fit.history
    assert history.keys() == {"loss", "largest", "two"}
    assert history["largest"] == [50.0] * 6
    np.testing.assert_array_equal(history["two"], [[1, 2]] * 6)


@pytest.mark.feature(
    "Logs whose shape depends on the batch",
    "no",
    "they cross the network as one vector of a fixed size",
)
def test_logs_of_no_fixed_shape(strategy, regression):
    class Sliced(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "targets": data[1]}

    with strategy.scope():
        model = Sliced([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"fixed shape.*\(None, 1\).*reduce_mean"):
        model.fit(*regression, batch_size=7, verbose=0)


class GAN(keras.Model):
    """A generator and a discriminator with an optimizer each, as in the Keras guide."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        self.seed_generator = keras.random.SeedGenerator(1)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.samples = SampleCount()
        self.built = True

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss, self.samples]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real):
        count = tf.shape(real)[0]

        def noise():
            return keras.random.normal((count, 3), seed=self.seed_generator)

        both = tf.concat([self.generator(noise()), real], 0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise()))
            g_loss = self.loss_fn(tf.zeros((count, 1)), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        self.samples.update_state(real, None)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.feature("Two optimizers (a GAN)")
def test_gan(strategy, regression, runs_on_workers):
    with strategy.scope():
        gan = GAN()
        gan.compile(
            keras.optimizers.Adam(0.01),
            keras.optimizers.SGD(0.01),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    before = [v.numpy() for v in gan.trainable_variables]
    with runs_on_workers(3 * STEPS):
        history = gan.fit(regression[0], epochs=3, batch_size=8, verbose=0).history
    assert history["samples"] == [64, 64, 64]
    assert np.isfinite(history["d_loss"]).all()
    assert np.isfinite(history["g_loss"]).all()
    assert gan.d_optimizer.iterations == gan.g_optimizer.iterations == 3 * STEPS
    for old, variable in zip(before, gan.trainable_variables, strict=True):
        assert not np.array_equal(old, variable.numpy())


@pytest.mark.feature("A gradient that is None (an unused layer)")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_unused_layer(strategy, regression, fits):
    class Unused(Subclassed):
        def build(self, shape):
            super().build(shape)
            self.extra = self.add_weight(shape=(2,), name="extra")

    with strategy.scope():
        model = Unused()
        model.compile("adam", "mse")
    fits(model, *regression)


@pytest.mark.feature("Two models of one strategy, in turns")
def test_two_models(strategy, regression, runs_on_workers):
    with strategy.scope():
        one, other = mlp(), mlp(optimizer="adam")
    for _ in range(2):
        for model in (one, other):
            with runs_on_workers(STEPS):
                model.fit(*regression, batch_size=8, verbose=0)
    assert one.optimizer.iterations == other.optimizer.iterations == 2 * STEPS


@pytest.mark.feature("`keras.models.clone_model` in the scope")
def test_clone(strategy, regression, fits):
    with strategy.scope():
        model = keras.models.clone_model(mlp())
        model.compile("sgd", "mse")
    fits(model, *regression)
