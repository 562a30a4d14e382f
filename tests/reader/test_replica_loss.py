"""`replica_loss="mean"`: what a step computes from its rows is a mean, by the user's word.

Three replicas of one process train on batches of 16, 16 and 13 rows, of which they have 5, 5
and 6, or 4, 4 and 5, and at the end on a batch of one row, of which two of them have none.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from multi_worker_cases import Alone, data, ramp

import tfdist
from tfdist.keras.batch_structure import BatchStructure
from tfdist.peers.input import Totals
from tfdist.peers.shares import TO_BE_SUMMED
from tfdist.synchronous.fit.run import ShareFunction
from tfdist.synchronous.replica.written import settle_written

from ..support.one_worker import strategy_of_one_worker
from ..support.raising import raises

pytestmark = pytest.mark.own_process

REPLICAS, BATCH = 3, 16
# Weighed by other shares than the rows', the weights differ by more than 1e-3.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def strategy():
    return strategy_of_one_worker(REPLICAS, replica_loss="mean")


class Own(keras.Model):
    """Has a step with a given loss, which it notes in every way."""

    def __init__(self, loss, *args, **options):
        super().__init__(*args, **options)
        self.of_step = loss
        self.mean = keras.metrics.Mean(name="mean_of_steps")
        self.error = keras.metrics.MeanAbsoluteError(name="error_of_rows")
        self.left_out = [keras.metrics.Mean(name="left_out")]

    @property
    def metrics(self):
        return [self.mean, self.error]

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = self.of_step(self, x, y, p)
        gradients = tape.gradient(loss, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        gradients = [tf.clip_by_norm(each, 0.5) for each in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        self.left_out[0].update_state(loss)
        self.error.update_state(y, p)
        results = {each.name: each.result() for each in self.metrics}
        return {**results, "loss": loss, "norm": norm}


def fitted(strategy, loss, rows=45, own=Own, layers=(), epochs=2, **options):
    with strategy.scope():
        inputs = keras.Input((4,))
        x = keras.layers.Dense(6, activation="tanh", kernel_initializer=ramp)(inputs)
        for layer in layers:
            x = layer()(x)
        head = keras.layers.Dense(1, kernel_initializer=ramp)
        model = own(loss, inputs, head(x))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **options)
    history = model.fit(
        *data(rows), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
    )
    for each in model.weights:
        copies = strategy_copies(strategy, each)
        assert all(np.array_equal(copies[0], copy) for copy in copies), each.path
    return model, history.history


def strategy_copies(strategy, variable):
    if isinstance(strategy, Alone):
        return [variable.numpy()]
    copies = strategy.experimental_local_results(variable.value)
    return [each.numpy() for each in copies]


def compare(strategy, *args, **options):
    model, logs = fitted(strategy, *args, **options)
    alone, expected = fitted(Alone(), *args, **options)
    assert logs.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, **TOLERANCE, err_msg=name)
    weights = zip(model.weights, alone.weights, strict=True)
    for ours, theirs in weights:
        if theirs.trainable:
            np.testing.assert_allclose(
                ours.numpy(), theirs.numpy(), **TOLERANCE, err_msg=theirs.path
            )
    state = model.left_out[0].result() if model.left_out[0].variables else None
    np.testing.assert_allclose(
        state, alone.left_out[0].result(), **TOLERANCE, err_msg="left out of metrics"
    )


def squared(y, p):
    return tf.reduce_mean(tf.square(y - p))


def plain(model, x, y, p):
    return squared(y, p)


def decision_forest(model, x, y, p):
    """Routes of the first layers of a tree, from a vector of ones for each row."""
    rows = tf.shape(p)[0]
    route = tf.reshape(tf.ones([rows, 1, 1]), [rows, -1, 1])
    sides = tf.concat([tf.sigmoid(p), 1.0 - tf.sigmoid(p)], 1)[:, :, None]
    for _ in range(2):
        route = tf.tile(route, [1, 1, 2])
        route = tf.reshape(route * tf.reshape(sides, [rows, 1, 2]), [rows, -1, 1])
    leaves = tf.range(4, dtype=tf.float32)[:, None]
    return squared(y, tf.reduce_sum(route * leaves, 1))


def shifted_pictures(model, x, y, p):
    """Cuts pictures, and pads them on one side."""
    picture = tf.reshape(tf.concat([x, p * x], 1), [-1, 2, 2, 2])
    shifted = tf.image.pad_to_bounding_box(picture[:, 1:], 0, 0, 2, 2)
    return squared(y, tf.reduce_sum(shifted, [1, 2, 3])[:, None] + p)


def graph_convolution(model, x, y, p):
    """Adds up what neighbours say, over the nodes on the second axis."""
    nodes = tf.transpose(x * p)
    sent = tf.gather(nodes, [0, 1, 2, 3, 0])
    received = tf.math.unsorted_segment_sum(sent, [1, 2, 3, 0, 2], 4)
    return squared(y, tf.reduce_mean(tf.transpose(received), 1, keepdims=True))


def in_a_loop(model, x, y, p):
    total = tf.while_loop(
        lambda i, _: i < 3, lambda i, s: (i + 1, s + 0.1 * squared(y, p)), [0, 0.0]
    )
    return total[1]


def penalty_of_slopes(model, x, y, p):
    """The gradient of a sum with respect to the rows is the replica's own."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        score = tf.reduce_sum(model(x, training=True))
    slopes = tape.gradient(score, x)
    return squared(y, p) + tf.reduce_mean((tf.norm(slopes, axis=1) - 1.0) ** 2)


def penalty_of_gradients(model, x, y, p):
    """The outer tape differentiates the gradient of the whole batch."""
    with tf.GradientTape() as tape:
        loss = squared(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    return loss + 0.1 * sum(tf.reduce_sum(tf.square(each)) for each in gradients)


def with_whole_batch(model, x, y, p):
    """A row against all, and a number of all."""
    everyone = tfdist.whole_batch(p)
    near = tf.reduce_logsumexp(tf.matmul(p, everyone, transpose_b=True), axis=1)
    return squared(y, p) + tf.reduce_mean(near) + tf.math.reduce_variance(everyone)


def of_whole_batch(model, x, y, p):
    return tf.math.reduce_variance(tfdist.whole_batch(y) - tfdist.whole_batch(p))


MEANS = [
    plain,
    decision_forest,
    shifted_pictures,
    graph_convolution,
    in_a_loop,
    penalty_of_slopes,
    penalty_of_gradients,
    with_whole_batch,
    of_whole_batch,
]


@pytest.mark.parametrize("loss", MEANS)
@pytest.mark.parametrize("rows", [45, 33])
def test_a_mean_gives_one_process_s_weights(strategy, loss, rows):
    compare(strategy, loss, rows=rows)


def test_a_mean_gives_one_process_s_weights_without_a_graph(strategy):
    compare(strategy, plain, run_eagerly=True)


def synchronized():
    return keras.layers.BatchNormalization(synchronized=True, epsilon=0.1)


def test_statistics_of_all_replicas_are_weighed_by_rows(strategy):
    compare(strategy, plain, layers=[synchronized])


class Views(Own):
    """As in SimSiam: two views, a predictor, and a gradient through one of them."""

    def train_step(self, batch):
        x, _ = batch
        with tf.GradientTape() as tape:
            one, two = (
                self(x + tf.random.normal(tf.shape(x), stddev=0.1), training=True)
                for _ in range(2)
            )
            loss = self.of_step(one, two)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def of_each_feature(one, two):
    """As in Barlow twins and SimSiam: the features are compared over the batch."""
    one = tf.math.l2_normalize(one - tf.reduce_mean(one, 0), axis=0)
    two = tf.math.l2_normalize(two - tf.reduce_mean(two, 0), axis=0)
    return -tf.reduce_mean(tf.reduce_sum(tf.stop_gradient(one) * two, 0))


def test_what_compares_rows_trains_on_each_replica_s_own(strategy, monkeypatch):
    layers = [keras.layers.BatchNormalization]
    _, logs = fitted(strategy, of_each_feature, own=Views, layers=layers, epochs=5)
    assert np.all(np.isfinite(logs["loss"]))
    monkeypatch.setattr(strategy, "replica_loss", None)
    with pytest.raises(tfdist.errors.IndivisibleLossError):
        fitted(strategy, of_each_feature, own=Views, layers=layers)


def gradients_of_parts(weight, sizes, slope):
    """Returns each replica's gradient, in the order of the rows of a batch."""
    ends = np.cumsum(sizes)
    x, y = data(sum(sizes))
    parts = zip(np.split(x, ends[:-1]), np.split(y, ends[:-1]), strict=True)
    return [slope(a.T @ (a @ weight - b), len(a)) for a, b in parts]


class Linear(keras.Model):
    """Has one weight for each feature, and a given loss and gradient."""

    def __init__(self, loss, gradient=None):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.of_step, self.gradient = loss, gradient or self.of_tape

    def call(self, x):
        return self.dense(x)

    def of_tape(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.of_step(y, self(x))
        return tape.gradient(loss, self.trainable_variables), loss

    def train_step(self, batch):
        gradients, loss = self.gradient(*batch)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def step_of(strategy, *given, rows=13):
    """Returns the weight after one step of SGD, at a rate of 1, and the step's log."""
    with strategy.scope():
        model = Linear(*given)
        model.compile(keras.optimizers.SGD(1.0))
    logs = model.fit(*data(rows), batch_size=rows, shuffle=False, verbose=0).history
    return model.weights[0].numpy(), logs["loss"][0]


SIZES = [4, 4, 5]
SHARES = np.array(SIZES) / 13


def test_a_sum_becomes_a_mean_of_sums(strategy):
    def loss(y, p):
        return 0.005 * tf.reduce_sum(tf.square(y - p))

    before = np.ones((4, 1), "float32")
    parts = gradients_of_parts(before, SIZES, lambda total, _: 0.01 * total)
    expected = before - sum(s * part for s, part in zip(SHARES, parts, strict=True))
    after, log = step_of(strategy, loss)
    np.testing.assert_allclose(after, expected, rtol=1e-5)
    x, y = data(13)
    of_parts = [
        0.005 * np.sum(each**2) for each in np.split(x @ before - y, [4, 8], axis=0)
    ]
    assert log == pytest.approx(np.dot(SHARES, of_parts), rel=1e-5)


def clipped(limit):
    @tf.custom_gradient
    def clip(weight):
        return tf.identity(weight), lambda d: tf.clip_by_value(d, -limit, limit)

    return clip


def test_a_gradient_function_sees_the_replica_s_own_mean(strategy):
    """With equal numbers of rows, where nothing is weighed in the backward pass."""
    limit, sizes = 0.5, [4, 4, 4]

    class Clipped(Linear):
        def call(self, x):
            self.dense(x)
            return x @ clipped(limit)(self.dense.kernel.value)

    def run():
        with strategy.scope():
            model = Clipped(squared)
            model.compile(keras.optimizers.SGD(1.0))
        model.fit(*data(12), batch_size=12, shuffle=False, verbose=0)
        return model.weights[0].numpy()

    before = np.ones((4, 1), "float32")
    parts = gradients_of_parts(before, sizes, lambda total, n: 2 * total / n)
    assert np.any(np.abs(parts) > limit)
    expected = before - np.mean(np.clip(parts, -limit, limit), 0)
    np.testing.assert_allclose(run(), expected, rtol=1e-5)


def test_gradients_without_a_tape_are_averaged(strategy):
    def gradient(x, y):
        model = made[-1]
        weights = [each.value for each in model.trainable_variables]
        loss = squared(y, model(x))
        return tf.gradients(loss, weights), loss

    made = []

    class Noted(Linear):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    def after(where):
        with where.scope():
            model = Noted(None, gradient)
            model.compile(keras.optimizers.SGD(0.1))
        model.fit(*data(13), batch_size=13, shuffle=False, verbose=0)
        return model.weights[0].numpy()

    np.testing.assert_allclose(after(strategy), after(Alone()), rtol=1e-5)


class Total(keras.metrics.Metric):
    """Assigns its state, and does not add to it."""

    def __init__(self):
        super().__init__(name="total")
        self.total = self.add_variable((), "zeros")

    def update_state(self, value, sample_weight=None):
        self.total.assign(self.total + ops.sum(value))

    def result(self):
        return self.total + 0.0


@pytest.mark.parametrize("value", [lambda y: ops.mean(y), lambda y: y])
def test_a_metric_of_rows_adds_up_and_one_of_a_number_is_weighed(strategy, value):
    class Noting(Own):
        def train_step(self, batch):
            x, y = batch
            self.total.update_state(value(y))
            return {"total": self.total.result()}

        @property
        def metrics(self):
            return [self.total]

    class Counting(Noting):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.total = Total()

    _, logs = fitted(strategy, None, rows=33, own=Counting)
    _, expected = fitted(Alone(), None, rows=33, own=Counting)
    np.testing.assert_allclose(logs["total"], expected["total"], **TOLERANCE)


class Shares:
    """Yields batches of given sizes; a replica has its number in its rows."""

    def __init__(self, strategy, sizes):
        self._of = strategy.experimental_distribute_values_from_function
        self._sizes = sizes

    def get_next(self):
        def each(value):
            return self._of(lambda c: value(c.replica_id_in_sync_group))

        rows = each(lambda i: tf.fill([max(self._sizes[i], 1), 1], i))
        size = each(lambda i: tf.constant(self._sizes[i], tf.int64))
        return size, each(lambda i: tf.constant(TO_BE_SUMMED, tf.int64)), (rows,)


@pytest.mark.parametrize(
    ("sizes", "of"), [((0, 0, 1), 2), ((2, 2, 0), 1), ((3, 0, 0), 0)]
)
def test_an_integer_is_that_of_a_replica_with_examples(strategy, sizes, of):
    with strategy.scope():
        kept = keras.Variable(9, dtype="int32", trainable=False)

    def run(step, batch):
        step.is_given(batch)
        kept.assign(tf.reduce_max(batch))
        settle_written(step)
        return tf.zeros([])

    structure = BatchStructure(tf.TensorSpec([None, 1], tf.int32))
    attempt = ShareFunction(strategy, structure, Totals(are_known=False), run)
    tf.function(lambda: attempt(Shares(strategy, sizes))[0], autograph=False)()
    assert [int(copy) for copy in strategy_copies(strategy, kept)] == [of] * REPLICAS


def test_without_the_word_the_refusal_says_both_lines(strategy, monkeypatch):
    monkeypatch.setattr(strategy, "replica_loss", None)
    with pytest.raises(tfdist.errors.IndivisibleLossError) as raised:
        fitted(strategy, lambda model, x, y, p: tf.reduce_max(p))
    assert "x = tfdist.whole_batch(x)" in str(raised.value)
    line = 'tfdist.MultiWorkerMirroredStrategy(replica_loss="mean")'
    assert line in str(raised.value)


@pytest.mark.parametrize("name", ["MultiWorkerMirroredStrategy", "RingStrategy"])
@pytest.mark.parametrize("word", ["sum", True, ""])
def test_other_words_are_refused(name, word):
    with raises(ValueError, '"mean"', "received"):
        getattr(tfdist, name)(replica_loss=word)
