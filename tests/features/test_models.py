"""Models, and steps of your own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import SampleCount, mlp

layers = keras.layers
STEPS = 8


@pytest.fixture
def fits(trains):
    """Asserts that the workers train a model, and that its loss falls."""

    def fit(build, *data, epochs=6, **options):
        steps = epochs * STEPS
        model, history = trains(build, *data, epochs=epochs, steps=steps, **options)
        assert history["loss"][-1] < history["loss"][0]
        return model, history

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
    assert history.keys() == names

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


@pytest.mark.feature("Shared layers, and a model inside of a model")
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


@pytest.mark.feature("A loss object of Keras inside of `add_loss`")
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


@pytest.mark.feature("`keras.random` without a seed in a `train_step`")
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
    """A train step and a test step of one's own, with the metrics of `compile`."""

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
    """A loss that no class of Keras has seen."""

    def loss_of(self, y, y_pred):
        return tf.reduce_mean((y - y_pred) ** 2)


class LossObject(CustomStep):
    def loss_of(self, y, y_pred):
        return keras.losses.MeanSquaredError()(y, y_pred)


class BothLosses(CustomStep):
    """The sum of a loss of Keras and of one's own, as of a variational autoencoder."""

    def loss_of(self, y, y_pred):
        error = keras.losses.MeanSquaredError()(y, y_pred)
        return error + 0.1 * tf.reduce_mean(tf.abs(y_pred))


STEPS_OF_OWN = [
    pytest.param(
        CustomStep,
        id="compute_loss",
        marks=pytest.mark.feature("A `train_step` of your own: `compute_loss`"),
    ),
    pytest.param(
        LossObject,
        id="loss-object",
        marks=pytest.mark.feature("A `train_step` of your own: a loss object of Keras"),
    ),
    pytest.param(
        OwnLoss,
        id="own-loss",
        marks=pytest.mark.feature("A `train_step` of your own: `tf.reduce_mean`"),
    ),
    pytest.param(
        BothLosses,
        id="both-losses",
        marks=pytest.mark.feature("A `train_step` of your own: the sum of both"),
    ),
]


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


@pytest.mark.feature("A `train_step` that logs its loss in a `Mean` of its own")
def test_mean_of_loss(regression, fits):
    def build():
        model = MeanOfLoss()
        model.compile(keras.optimizers.SGD(0.001))
        return model

    _, history = fits(build, *regression)
    assert history.keys() == {"loss", "mae"}


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


@pytest.mark.feature("A GAN: two optimizers, and no `call`")
@pytest.mark.parametrize("is_random", [False, True])
def test_gan(regression, trains, is_random):
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

    gan, history = trains(
        build, regression[0], epochs=3, steps=3 * STEPS, exact=not is_random
    )
    assert history["samples"] == [64, 64, 64]
    assert np.isfinite(history["d_loss"]).all()
    assert np.isfinite(history["g_loss"]).all()
    assert gan.d_optimizer.iterations == gan.g_optimizer.iterations == 3 * STEPS
    for old, variable in zip(starts[0], gan.trainable_variables, strict=True):
        assert not np.array_equal(old, variable.numpy())


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
def test_clone(regression, fits):
    def build():
        model = keras.models.clone_model(mlp())
        model.compile("sgd", "mse")
        return model

    fits(build, *regression)
