"""What workers draw by themselves, and what they take from the chief, becomes the same."""

import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.sources import shuffled
from tfdist.peers import agreement, checksums
from tfdist.peers.agreement import UnequalModelError
from tfdist.peers.input import check_read_once
from tfdist.peers.shares import UnequalDataError
from tfdist.peers.shuffle import seeds_of, with_agreed_seeds

from ..support.deadline import DEADLINE
from ..support.raising import raises


def noisy(**options):
    data = tf.data.Dataset.range(8)
    return data.map(lambda i: tf.cast(i, tf.float32) + tf.random.uniform([], **options))


def flipped(image):
    return tf.cond(tf.random.uniform([]) < 0.5, lambda: image, lambda: -image)


DATASETS = {
    "noise": noisy,
    "branch": lambda: tf.data.Dataset.range(8).map(flipped),
    "permutation": lambda: shuffled(8, 1, None),
    "order": lambda: tf.data.Dataset.range(8).shuffle(8),
    "order and noise": lambda: noisy().shuffle(8),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
def test_two_workers_draw_the_same(make):
    def drawn(seed):
        return [float(each) for each in with_agreed_seeds(make(), seed)]

    _, unseeded = seeds_of(make())
    assert unseeded
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(100)
    assert len(set(drawn(1))) == 8 or make is DATASETS["branch"]


def test_a_seed_of_the_program_is_kept():
    checksum, unseeded = seeds_of(noisy(seed=3))
    assert not unseeded
    assert checksum == seeds_of(noisy(seed=3))[0] != seeds_of(noisy(seed=4))[0]


def test_what_a_variable_decides_is_left_to_the_program():
    scale = tf.Variable(2.0)
    data = tf.data.Dataset.range(3).map(lambda _: scale * tf.random.uniform([]))
    assert not seeds_of(data)[1]


class Workers:
    """Two workers, one thread each, that exchange texts and numbers."""

    def __init__(self):
        self._barrier = threading.Barrier(2)
        self._given = [None, None]

    def run(self, models, check_model=agreement.check_model):
        errors = [None, None]

        def check(index):
            strategy = Strategy(self, index)
            try:
                check_model(models[index], strategy)
            except UnequalModelError as error:
                errors[index] = error

        threads = [threading.Thread(target=check, args=(i,)) for i in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(DEADLINE)
        return errors

    def exchange(self, index, value):
        self._given[index] = value
        self._barrier.wait(DEADLINE)
        both = list(self._given)
        self._barrier.wait(DEADLINE)
        return both


class Strategy:
    num_workers = 2

    def __init__(self, workers, index):
        self.extended, self._workers, self._index = self, workers, index

    def gather_numbers(self, numbers):
        return np.array(self._workers.exchange(self._index, numbers))

    def gather_texts(self, text):
        texts = self._workers.exchange(self._index, text)
        return {f"worker:{i}": each for i, each in enumerate(texts)}


def adapted(x):
    layer = keras.layers.Normalization()
    layer.adapt(x)
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


X = np.random.default_rng(0).normal(5.0, 2.0, size=(999, 3)).astype("float32")


def batches(x):
    return tf.data.Dataset.from_tensor_slices(x).batch(32)


def test_what_differs_by_rounding_is_the_chiefs():
    chief, worker = adapted(batches(X)), adapted(batches(X[::-1]))
    means = [each.layers[0].mean.numpy() for each in (chief, worker)]
    assert not np.array_equal(*means)
    assert Workers().run([chief, worker]) == [None, None]
    for name in ("mean", "variance"):
        ours, chiefs = (getattr(each.layers[0], name) for each in (worker, chief))
        np.testing.assert_array_equal(ours, chiefs)
    np.testing.assert_array_equal(chief.layers[0].mean, means[0])


def test_what_differs_in_substance_is_refused():
    models = adapted(batches(X)), adapted(batches(X[:900]))
    errors = Workers().run(models)
    assert all("Normalization): mean" in str(each) for each in errors)
    assert not np.array_equal(*(each.layers[0].mean for each in models))


def discretized(x, num_bins=4):
    layer = keras.layers.Discretization(num_bins=num_bins)
    layer.adapt(batches(x))
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_boundaries_of_the_same_examples_in_another_order_are_the_chiefs():
    chief, worker = discretized(X), discretized(X[::-1])
    ours, chiefs = (list(each.layers[0].bin_boundaries) for each in (worker, chief))
    assert not np.allclose(ours, chiefs, atol=1e-3)
    assert Workers().run([chief, worker]) == [None, None]
    assert list(chief.layers[0].bin_boundaries) == chiefs
    assert list(worker.layers[0].bin_boundaries) == chiefs
    np.testing.assert_array_equal(worker.layers[0].summary, chief.layers[0].summary)
    np.testing.assert_array_equal(worker.layers[0](X), chief.layers[0](X))


@pytest.mark.parametrize("other", [X[:900], X * 1.2, X + 1.0])
def test_boundaries_of_other_examples_are_refused(other):
    errors = Workers().run([discretized(X), discretized(other)])
    assert all("(Discretization): its options" in str(each) for each in errors)


def test_other_numbers_of_bins_are_refused():
    errors = Workers().run([discretized(X), discretized(X[::-1], num_bins=5)])
    assert all("(Discretization): its options" in str(each) for each in errors)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (keras.layers.IntegerLookup, np.arange(60) % 7),
        (keras.layers.StringLookup, np.array(list("the quick brown fox"))),
        (
            lambda: keras.layers.TextVectorization(output_mode="tf_idf"),
            np.array(["a b", "b c", "c d", "d e f"]),
        ),
    ],
    ids=["integers", "texts", "frequencies"],
)
def test_a_vocabulary_does_not_depend_on_the_order(make, values):
    """Not even that of words which are as frequent as each other."""
    models = []
    for order in (values, values[::-1]):
        layer = make()
        layer.adapt(tf.data.Dataset.from_tensor_slices(order).batch(3))
        models.append(keras.Sequential([layer]))
        models[-1].compile("sgd", "mse")
    assert Workers().run(models) == [None, None]


def test_a_text_that_differs_is_refused():
    models = [
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]) for _ in X[:2]
    ]
    for index, model in enumerate(models):
        model.compile("sgd", "mse")
        model.layers[0].word = tf.constant(f"word {index}")
    assert all("(Dense): word" in str(each) for each in Workers().run(models))


def views(examples, seed):
    """Pairs of random views without a target, as contrastive learning reads them."""
    keras.utils.set_random_seed(seed)
    noise = keras.layers.GaussianNoise(0.1)
    source = tf.data.Dataset.from_tensor_slices(examples).shuffle(100)
    one = source.map(lambda x: x + tf.random.normal([]), tf.data.AUTOTUNE)
    other = source.map(lambda x: noise(x, training=True))
    return tf.data.Dataset.zip((one, other)).batch(8).prefetch(1)


def test_random_views_are_compared_by_what_they_are_views_of():
    examples = np.arange(20, dtype="float32")
    mine, may_differ = agreement._of_dataset("x", views(examples, 1))
    theirs, _ = agreement._of_dataset("x", views(examples, 2))
    assert mine == theirs
    assert not may_differ
    assert mine != agreement._of_dataset("x", views(examples[::-1].copy(), 1))[0]


def test_random_views_of_what_python_makes_are_compared_themselves():
    dataset = views(np.arange(20, dtype="float32"), 1)
    dataset = dataset.map(lambda x, y: tf.numpy_function(np.add, [x, y], tf.float32))
    checksums, may_differ = agreement._of_dataset("x", dataset)
    assert list(checksums) == ["x, its first batch"]
    assert may_differ


def test_workers_read_a_generator_in_one_call():
    def batches():
        yield np.ones((2, 1))

    generator = batches()
    check_read_once({"x": generator, "validation_data": batches()})
    check_read_once({"x": np.ones(2)})
    with raises(UnequalDataError, "generator", "earlier call"):
        check_read_once({"x": generator})


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.scale


def trained_alike(model, strategy):
    def gather(number):
        return strategy.gather_numbers([number])[:, 0].tolist()

    agreement.check_updates(checksums.of_updates(model), strategy, gather)


CHANGES = {
    "rate": (
        lambda model: setattr(model.optimizer.inner_optimizer, "learning_rate", 0.05),
        r"learning_rate \(optimizer.variables\[\d\]\) is 0.1 on .*:0, but 0.05 on .*:1\.",
    ),
    "steps": (
        lambda model: model.optimizer.inner_optimizer.iterations.assign_add(1),
        r"iteration \(.*\) is 0 on worker:0, but 1 on worker:1\.",
    ),
    "scale of the loss": (
        lambda model: model.optimizer.dynamic_scale.assign(2.0),
        r"dynamic_scale \(.*\) is 32768.0 on worker:0, but 2.0 on worker:1\.",
    ),
    "number of Python": (
        lambda model: setattr(model.optimizer, "dynamic_growth_steps", 7),
        "dynamic_growth_steps is 2000 on worker:0, but 7 on worker:1",
    ),
    "frozen layer": (
        lambda model: setattr(model.layers[0], "trainable", False),
        r"layer 2 \(Dense\).trainable is True on worker:0, but False on worker:1\.",
    ),
    "slots": (lambda model: model.optimizer.variables[-1].assign(3.0), None),
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_what_decides_an_update_is_compared(change, words):
    models = []
    for _ in range(2):  # Their layers have different names.
        layers = [keras.Input((3,)), keras.layers.Dense(1), Scale()]
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        models.append(keras.Sequential(layers))
        models[-1].compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse")
        models[-1].optimizer.build(models[-1].trainable_variables)
    assert Workers().run(models, trained_alike) == [None, None]
    change(models[1])
    for error in Workers().run(models, trained_alike):
        assert (error is None) == (words is None)
        assert words is None or re.search(f"{words}.*Give the callback to", str(error))
