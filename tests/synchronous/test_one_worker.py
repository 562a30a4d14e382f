"""`MultiWorkerMirroredStrategy` with one worker, whose replicas are two CPU devices."""

import contextlib
import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import _tf
from tfdist.variables.creation import being_created

from ..support.one_worker import strategy_of_one_worker
from ..support.raising import raises
from .updates_in_run import UPDATES, after_three

pytestmark = pytest.mark.own_process

REPLICAS = 2


@pytest.fixture(scope="module")
def strategy():
    strategy = strategy_of_one_worker(REPLICAS)
    with strategy.scope():
        keras.random.uniform([])  # Replicas draw from the generator that this makes.
    return strategy


class Owner:
    def __init__(self, step):
        self.step = step

    def plain(self, x):
        return self.step(x)

    @tf.function
    def traced(self, x):
        return self.step(x)


def running(strategy, step):
    return lambda x: strategy.run(step, args=(x,))


def running_a_traced_method(strategy, step):
    owner = Owner(step)  # TensorFlow keeps a weak reference to it.
    return lambda x: strategy.run(owner.traced, args=(x,))


def running_eagerly(strategy, step):
    def run(x):
        tf.config.run_functions_eagerly(True)
        try:
            return strategy.run(tf.function(step), args=(x,))
        finally:
            tf.config.run_functions_eagerly(False)

    return run


def traced_with(**options):
    return lambda strategy, step: running(strategy, tf.function(step, **options))


WAYS = {
    "plain": running,
    "traced": traced_with(),
    "of a signature": traced_with(input_signature=[tf.TensorSpec([])]),
    "of any shape": traced_with(reduce_retracing=True),
    "partial": lambda s, step: running(s, tf.function(functools.partial(step))),
    "method": lambda s, step: running(s, tf.function(Owner(step).plain)),
    "traced method": running_a_traced_method,
    "within another": lambda s, step: tf.function(running(s, tf.function(step))),
    "eagerly": running_eagerly,
}


@pytest.mark.parametrize(
    ("way", "update"),
    [
        *((way, "applied") for way in WAYS),
        *(
            (way, each)
            for way in ("plain", "traced")
            for each in ("written", "reduced")
        ),
    ],
)
def test_run_takes_a_function(strategy, way, update):
    step, result, expected = UPDATES[update](strategy)
    assert after_three(WAYS[way](strategy, step), result) == expected(REPLICAS)


def test_a_traced_function_draws_what_the_seed_says(strategy):
    traced = tf.function(lambda: keras.random.uniform([4]))

    def drawn():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            keras.random.uniform([])
        values = [strategy.run(traced) for _ in range(2)]
        return np.array([strategy.experimental_local_results(each) for each in values])

    first = drawn()
    assert not np.array_equal(*first)
    np.testing.assert_array_equal(drawn(), first)


ROWS = np.arange(64, dtype="float32")[:, None] / 64


@pytest.mark.parametrize("batch_size", [1, 2])
def test_batches_of_at_most_a_row_per_replica_train_as_in_one_process(
    strategy, batch_size
):
    def trained(scope):
        with scope:
            model = keras.Sequential(
                [
                    keras.Input((1,)),
                    keras.layers.Dense(1, "relu", bias_initializer="ones"),
                ]
            )
            model.compile("sgd", "mse", metrics=["mae"])
        model.set_weights([np.full([1, 1], 0.5), np.ones(1)])
        options = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
        found = model.fit(ROWS[:6], 3 * ROWS[:6], **options).history
        return *model.get_weights(), found["loss"], found["mae"]

    found, expected = trained(strategy.scope()), trained(contextlib.nullcontext())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        rows = ROWS[4 * index : 4 * index + 4]
        return rows, rows


SHUFFLED = {
    "arrays": lambda: {"x": ROWS, "y": ROWS, "batch_size": 4},
    "dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).shuffle(64).batch(4)
    },
    "py_dataset": lambda: {"x": Batches(), "shuffle": True},
}


@pytest.mark.parametrize(
    ("kind", "set_seed"),
    [
        ("arrays", tf.random.set_seed),
        ("dataset", tf.random.set_seed),
        ("py_dataset", random.seed),
    ],
)
def test_a_seed_set_again_repeats_the_order_of_the_data(strategy, kind, set_seed):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.2), "mse")
    start = [np.zeros((1, 1)), np.zeros(1)]

    def weight_after_fit():
        model.set_weights(start)
        model.fit(**SHUFFLED[kind](), verbose=0)
        return float(model.get_weights()[0][0, 0])

    set_seed(7)
    first, second = weight_after_fit(), weight_after_fit()
    set_seed(7)
    assert [weight_after_fit(), weight_after_fit()] == [first, second]
    assert first != second


def trained_until_the_data_ends(strategy, eagerly=False, **options):
    """Returns results on 5 batches whose number nobody knows beforehand.

    With `eagerly`, every `tf.function` of the second `fit` runs eagerly.
    """
    data = tf.data.Dataset.from_tensor_slices((ROWS[:37], 2 * ROWS[:37]))
    data = data.filter(lambda x, y: True).batch(8)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    first = model.fit(data, verbose=0, validation_data=data).history
    tf.config.run_functions_eagerly(eagerly)
    try:
        history = model.fit(data, verbose=0, validation_data=data).history
        found = [model.evaluate(data, verbose=0), model.predict(data, verbose=0)]
    finally:
        tf.config.run_functions_eagerly(False)
    found += [*first.values(), *history.values(), model.get_weights()]
    found.append([model.optimizer.iterations.numpy()])
    return [np.concatenate([np.ravel(part) for part in each]) for each in found]


@pytest.fixture(scope="module")
def in_graphs(strategy):
    return trained_until_the_data_ends(strategy)


@pytest.mark.parametrize(
    "options",
    [{"run_eagerly": True}, {"eagerly": True, "steps_per_execution": 3}],
)
def test_eager_steps_end_with_data_of_unknown_length(strategy, in_graphs, options):
    found = trained_until_the_data_ends(strategy, **options)
    for each, wanted in zip(found, in_graphs, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-5)
    assert found[-1] == [10]


class OfTwoInputs(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
        for part in self.parts:
            part.build((None, 3))
        self.losses_seen = [keras.metrics.Mean(name=name) for name in ("a", "b")]

    @property
    def metrics(self):
        return self.losses_seen

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_mean((part(x) - y) ** 2)
                for part, (x, y) in zip(self.parts, data, strict=True)
            ]
            loss = losses[0] + losses[1]
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        for seen, value in zip(self.losses_seen, losses, strict=True):
            seen.update_state(value)
        return self.get_metrics_result()


def two_inputs(*sizes):
    rng = np.random.default_rng(0)

    def batches(size):
        x = rng.normal(size=(3 * size, 3)).astype("float32")
        y = x.sum(1, keepdims=True)
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)

    return tf.data.Dataset.zip(tuple(map(batches, sizes)))


@pytest.mark.parametrize("sizes", [(8, 2), (4, 12)])
def test_inputs_of_different_batch_sizes_are_shared_in_proportion(strategy, sizes):
    def fit():
        keras.utils.set_random_seed(1)
        model = OfTwoInputs()
        model.compile(keras.optimizers.SGD(0.1))
        history = model.fit(two_inputs(*sizes), epochs=2, verbose=0).history
        return [*history.values(), *model.get_weights()]

    expected = fit()
    with strategy.scope():
        found = fit()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_inputs_without_a_common_proportion_are_refused(strategy):
    with strategy.scope():
        model = OfTwoInputs()
        model.compile(keras.optimizers.SGD(0.1))
    with raises(tfdist.errors.UnequalDataError, "the inputs ", "of 2", "one array"):
        model.fit(two_inputs(8, 3), verbose=0)


class OfRaggedRows(keras.Model):
    """Has a step of its own around Keras's, which counts rows, as does the step itself."""

    def __init__(self, count):
        super().__init__()
        self.count, self.number = count, keras.metrics.Sum(name="number")
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.dense.build((None, 1))

    @property
    def metrics(self):
        return [*super().metrics, self.number]

    def call(self, x):
        return self.dense(tf.reduce_sum(x.to_tensor(shape=[None, 4]), 1, keepdims=True))

    def train_step(self, batch):
        self.number.update_state(self.count(batch[0]))
        return super().train_step(batch)


def ragged_batches():
    # Of three rows, of which a replica has two, and at the end of one, which it has alone.
    lengths = np.arange(13) % 5
    rows = tf.ragged.constant([[0.1 * n] * n for n in lengths], ragged_rank=1)
    x = tf.cast(rows, tf.float32)
    return tf.data.Dataset.from_tensor_slices((x, lengths[:, None])).batch(3)


@pytest.mark.parametrize(
    ("count", "numbers"),
    [
        (lambda x: tf.shape(x)[0], 2 * 13),
        (lambda x: x.nrows() + (tf.shape(x.row_splits, tf.int64)[0] - 1), 4 * 13),
        (lambda x: tf.function(lambda x: x.nrows())(x), 2 * 13),
    ],
)
def test_a_step_of_ones_own_counts_ragged_rows(strategy, count, numbers):
    def fit():
        model = OfRaggedRows(count)
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        history = model.fit(ragged_batches(), epochs=2, verbose=0).history
        assert sum(history["number"]) == numbers
        evaluated = model.evaluate(ragged_batches(), verbose=0)
        return [*history.values(), evaluated, *model.get_weights()]

    expected = fit()
    with strategy.scope():
        found = fit()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_the_number_of_row_splits_does_not_add_up(strategy):
    with strategy.scope():
        model = OfRaggedRows(lambda x: tf.shape(x.row_splits)[0])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with raises(tfdist.errors.IndivisibleLossError, "StridedSlice"):
        model.fit(ragged_batches(), verbose=0)


def test_the_chief_sends_no_zeros(strategy, monkeypatch):
    sent, base = [], _tf.CollectiveAllReduceExtended
    get = base._get_variable_creator_initial_value

    def noting(extended, replica_id, *args, **kwargs):
        if replica_id == 0:
            sent.append(being_created().path.split("/")[-1])
        return get(extended, replica_id, *args, **kwargs)

    monkeypatch.setattr(base, "_get_variable_creator_initial_value", noting)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)
    assert set(sent) == {"kernel", "iteration", "learning_rate"}
    for each in (model.weights[1], *optimizer.variables[2:]):
        copies = strategy.experimental_local_results(each.value)
        np.testing.assert_array_equal(copies, np.zeros((REPLICAS, *each.shape)))


def test_a_step_asks_once_whether_its_rows_count(strategy):
    graphs = []

    class Noting(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            graphs.append(tf.compat.v1.get_default_graph())
            return logs

    with strategy.scope():
        model = Noting(
            [keras.Input((1,)), keras.layers.Dense(8), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).batch(5)
    model.fit(data, verbose=0)
    operations = graphs[-1].get_operations()
    assert sum("Collective" in op.type for op in operations) == REPLICAS
    assert sum(op.type.endswith("If") for op in operations) == REPLICAS


class Measuring(keras.Model):
    """A model whose step of `evaluate` updates a metric by itself."""

    def __init__(self, metric, number, *args):
        super().__init__(*args)
        self.metric, self.number = metric, number

    @property
    def metrics(self):
        return [self.metric]

    def test_step(self, data):
        x, y = data
        self.metric.update_state(*self.number(y, self(x)))
        return {"measured": self.metric.result()}


def measured(metric, number=lambda *rows: rows, run_eagerly=False):
    """A metric of each label of 16, 16 and 1 examples, compiled and in a step."""
    x = np.random.RandomState(3).rand(33, 3).astype("float32")
    y = (x[:, ::-1] > 0.4).astype("float32")
    found = []
    for own in (True, False):
        inputs = keras.Input((3,))
        outputs = keras.layers.Dense(3, "sigmoid", kernel_initializer="ones")(inputs)
        if own:
            model = Measuring(metric(), number, inputs, outputs)
            model.compile(run_eagerly=run_eagerly)
        else:
            model = keras.Model(inputs, outputs)
            model.compile(loss="mse", metrics=[metric()], run_eagerly=run_eagerly)
        found += [model.evaluate(x, y, batch_size=16, verbose=0)]
    return found[0], found[1][1]


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_labels": 3, "from_logits": True},
        {"num_labels": 3, "label_weights": [0.2, 0.3, 0.5]},
        {"thresholds": [0.55, 0.7, 0.85]},
    ],
    ids=str,
)
def test_an_area_for_each_label_is_one_process_s(strategy, options, run_eagerly):
    def area():
        return keras.metrics.AUC(multi_label=True, **options)

    expected = measured(area)
    with strategy.scope():
        found = measured(area, run_eagerly=run_eagerly)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_metric_of_rows_is_given_no_number_that_combines_them(strategy):
    def compared(y, p):
        circle = keras.losses.Circle()(keras.ops.argmax(y, -1), p)
        return tf.zeros([1, 1]), tf.reshape(circle, [1, 1])

    with strategy.scope(), pytest.raises(tfdist.errors.NotAdditiveError):
        measured(lambda: keras.metrics.AUC(multi_label=True), compared)
