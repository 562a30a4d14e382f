"""Steps of your own."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import SampleCount, row
from policies import own_logs

from tfdist.parameter_server.rounds.computation import RoundError

from ..support.raising import raises

layers = keras.layers
STEPS = 8


@pytest.mark.in_gate
@pytest.mark.feature(
    "`keras.random` without a seed in a `train_step`",
    on_ps="two workers may draw the same numbers, for different batches",
)
@pytest.mark.sets_own_value("^seed_generator_state", "numbers are drawn twice at worst")
def test_random_numbers_without_a_seed(regression, fits):
    class Noisy(keras.Sequential):
        def train_step(self, data):
            x, y = data
            return super().train_step((x + 0.01 * keras.random.normal(tf.shape(x)), y))

    def build():
        model = Noisy([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    fits(build, *regression, exact=False)


class CustomStep(keras.Model):
    """A custom train step and test step, with the metrics of `compile`."""

    def loss_of(self, y, y_pred):
        return self.compute_loss(y=y, y_pred=y_pred)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_of(y, y_pred)
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


class OwnLoss(CustomStep):
    """A loss computed without Keras's loss classes."""

    def loss_of(self, y, y_pred):
        return tf.reduce_mean((y - y_pred) ** 2)


class LossObject(CustomStep):
    def loss_of(self, y, y_pred):
        return keras.losses.MeanSquaredError()(y, y_pred)


class BothLosses(CustomStep):
    """The sum of a Keras loss and a custom one, as in a variational autoencoder."""

    def loss_of(self, y, y_pred):
        error = keras.losses.MeanSquaredError()(y, y_pred)
        return error + 0.1 * tf.reduce_mean(tf.abs(y_pred))


STEPS_OF_OWN = [
    row("compute_loss", CustomStep, "A `train_step` of your own: `compute_loss`"),
    row("loss-object", LossObject, "A `train_step` of your own: a Keras loss object"),
    row("own-loss", OwnLoss, "A `train_step` of your own: `tf.reduce_mean`"),
    row("both-losses", BothLosses, "A `train_step` of your own: the sum of both"),
]


@pytest.mark.in_gate("compute_loss-3")
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize("model_class", STEPS_OF_OWN)
def test_train_step(regression, fits, model_class, steps_per_execution):
    def build():
        x = keras.Input((4,))
        model = model_class(x, layers.Dense(1)(x))
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        return model

    x, y = regression
    model, history = fits(build, x, y)
    assert model.optimizer.iterations == 6 * STEPS
    # Of one batch of all the data, what is logged is the loss before the step.
    y_pred = model.predict(x, verbose=0)
    history = model.fit(x, y, batch_size=64, verbose=0).history
    logged = model_class.loss_of(model, tf.constant(y), tf.constant(y_pred))
    assert history["loss"][0] == pytest.approx(float(logged), rel=1e-4)


class Applies(keras.Model):
    """Applies gradients within a condition, a loop, or a function of its own."""

    where = "condition"

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)

        def apply():
            self.optimizer.apply(gradients, self.trainable_variables)
            return 0

        if self.where == "condition":
            tf.cond(tf.math.is_finite(loss), apply, lambda: 0)
        elif self.where == "loop":
            tf.while_loop(
                lambda i: i < 2, lambda i: (apply(), i + 1)[1:], (tf.constant(0),)
            )
        else:
            self.apply_all(gradients)
        return {"last": loss}

    @tf.function
    def apply_all(self, gradients):
        self.optimizer.apply(gradients, self.trainable_variables)


@pytest.mark.parametrize("where", ["condition", "loop", "function"])
def test_gradients_applied_within(regression, trains, is_synchronous, in_rounds, where):
    def build():
        x = keras.Input((4,))
        model = Applies(x, layers.Dense(1)(x))
        model.where = where
        model.compile(keras.optimizers.Adam(0.05))
        return model

    # Within a function, AutoGraph raises an error of its own with the same text.
    refused = None
    if in_rounds:
        refused = raises(Exception, "tf.cond")
    elif is_synchronous and where == "function":
        refused = raises(Exception, "@tf.function")
    with refused or contextlib.nullcontext():
        model, history = trains(build, *regression, epochs=6, steps=48)
        assert history["last"][-1] < history["last"][0]
        assert int(model.optimizer.iterations) == 48 * (2 if where == "loop" else 1)


class MeanOfLoss(keras.Model):
    """Logs its loss in a `Mean`, and a metric, both its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self):
        return [self.loss_tracker, self.error]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.mean_squared_error(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        self.error.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


@pytest.mark.feature("A `train_step` that logs its loss in its own `Mean`")
def test_mean_of_loss(regression, fits):
    def build():
        model = MeanOfLoss()
        model.compile(keras.optimizers.SGD(0.001))
        return model

    _, history = fits(build, *regression)
    assert history.keys() == {"loss", "mae"}


@pytest.mark.in_gate
@pytest.mark.feature("A `test_step` of your own")
def test_test_step(strategy, regression):
    with strategy.scope():
        x = keras.Input((4,))
        model = CustomStep(x, layers.Dense(1)(x))
        model.compile("sgd", "mse")
    assert model.evaluate(*regression, verbose=0) == 100.0
    history = model.fit(*regression, validation_data=regression, verbose=0).history
    assert history["val_loss"] == [100.0]


@pytest.mark.feature("Nested logs: `{m.name: m.result() for m in self.metrics}`")
def test_nested_logs(regression, fits):
    class Nested(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            assert logs.keys() == {"loss", "mae"}
            return {m.name: m.result() for m in self.metrics}

    def build():
        x = keras.Input((4,))
        model = Nested(x, layers.Dense(1)(x))
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    _, history = fits(build, *regression)
    assert history.keys() == {"loss", "mae"}


class ExtraLogs(keras.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "target": tf.reduce_mean(data[1]), "two": tf.constant([1, 2])}


@pytest.mark.in_gate("3")
@pytest.mark.feature(
    "Other values in the logs of a `train_step`",
    "approximate",
    "as in plain Keras, an epoch's logs are those of its last step",
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
    history = own_logs(fit.history)
    assert history.keys() == {"loss", "target", "two"}
    assert history["target"] == [50.0] * 6
    np.testing.assert_array_equal(history["two"], [[1, 2]] * 6)


@pytest.mark.feature(
    "Logs whose shape depends on the batch",
    "no",
    "logs are sent as one vector of fixed size",
)
def test_logs_of_no_fixed_shape(strategy, regression):
    class Sliced(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "targets": data[1]}

    with strategy.scope():
        model = Sliced([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    with raises(ValueError, "(None, 1)", "reduce_mean"):
        model.fit(*regression, batch_size=7, verbose=0)


class GAN(keras.Model):
    """A generator and a discriminator with an optimizer each, and no `call`.

    Each sample of noise is made of the real one beside it, unless the model is random:
    then all batches and replicas draw another.
    """

    def __init__(self, is_random):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        self.is_random = is_random
        self.seed_generator = keras.random.SeedGenerator(1)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.samples = SampleCount()

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss, self.samples]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = loss_fn

    def noise(self, real):
        if not self.is_random:
            return tf.sin(100.0 * real[:, :3])
        return keras.random.normal((tf.shape(real)[0], 3), seed=self.seed_generator)

    def train_step(self, real):
        count = tf.shape(real)[0]
        both = tf.concat([self.generator(self.noise(real)), real], 0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(self.noise(real)))
            g_loss = self.loss_fn(tf.zeros((count, 1)), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        self.samples.update_state(real, None)
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.in_gate("True")
@pytest.mark.feature(
    "A GAN: two optimizers, and no `call`",
    rounds=("no", "a step applies gradients twice"),
)
@pytest.mark.parametrize("is_random", [False, True])
def test_gan(regression, trains, is_random, is_refused):
    starts = []

    def build():
        gan = GAN(is_random)
        gan.compile(
            keras.optimizers.Adam(0.01),
            keras.optimizers.SGD(0.01),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
        starts.append([v.numpy() for v in gan.trainable_variables])
        return gan

    fit = {"epochs": 3, "steps": 3 * STEPS, "exact": not is_random}
    if is_refused:
        with raises(RoundError, "twice"):
            trains(build, regression[0], **fit)
        return
    gan, history = trains(build, regression[0], **fit)
    assert history["samples"] == [64, 64, 64]
    assert np.isfinite(history["d_loss"]).all()
    assert np.isfinite(history["g_loss"]).all()
    assert gan.d_optimizer.iterations == gan.g_optimizer.iterations == 3 * STEPS
    for old, variable in zip(starts[0], gan.trainable_variables, strict=True):
        assert not np.array_equal(old, variable.numpy())
