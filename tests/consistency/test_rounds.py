"""Synchronous training on parameter servers: the weights are those of one process.

One process trains on batches that are as many times as large as a round has batches.
"""

import contextlib
import functools
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.parameter_server.steps.worker_function import WorkerFunction

sys.path.insert(0, str(Path(__file__).parents[1] / "features"))
from models import assert_alike, compiled, mlp  # noqa: E402
from test_optimizers import RULES  # noqa: E402
from test_random import STEPS, Drawing, inside_a_branch  # noqa: E402

from ..support.raising import raises

pytestmark = [pytest.mark.cluster, pytest.mark.parameter_server]

WORKERS, BATCH = 2, 8
# Three whole rounds, and one of a single batch of four.
SAMPLES, ROUNDS = 52, 4

HALVES = tfdist.FixedShardsPartitioner(2)
layers, optimizers = keras.layers, keras.optimizers


@pytest.fixture(autouse=True)
def synchronous(strategy, monkeypatch):
    # Whoever has set a policy is measured, and other tests have set none.
    monkeypatch.setattr(strategy, "_consistency", tfdist.Asynchronous())
    monkeypatch.setattr(strategy, "_measures", False)
    strategy.consistency = tfdist.Synchronous()


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    return x, x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])


@pytest.fixture
def ids():
    """Each batch has every row: tfdist.embedding.Embedding leaves the others as they are."""
    rng = np.random.default_rng(0)
    batches = [
        rng.permutation(np.arange(6 * len(each)) % 23)
        for each in np.split(np.arange(SAMPLES), range(BATCH, SAMPLES, BATCH))
    ]
    x = np.concatenate(batches).reshape(SAMPLES, 6)
    return x, rng.normal(size=(SAMPLES, 1)).astype("float32")


def assert_as_one_process(
    strategy,
    build,
    data,
    epochs=2,
    rtol=1e-4,
    atol=1e-5,
    around=None,
    same_loss=True,
    **fit,
):
    """Trains both, and returns the model of the cluster."""
    fit = {"shuffle": False, "verbose": 0, "epochs": epochs, **fit}
    keras.utils.set_random_seed(0)
    one = build()
    with strategy.scope():
        ours = around() if around else build()
    ours.set_weights(one.get_weights())
    before = sum(strategy.worker_report().steps)
    history = ours.fit(*data, batch_size=BATCH, **fit).history
    batches = -(-len(data[0]) // BATCH) * epochs
    assert sum(strategy.worker_report().steps) - before == batches
    expected = one.fit(*data, batch_size=WORKERS * BATCH, **fit).history
    assert int(ours.optimizer.iterations) == int(one.optimizer.iterations)
    assert_alike(ours.get_weights(), one.get_weights(), rtol=rtol, atol=atol)
    if same_loss:
        np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-3)
    return ours


# `make features` trains with all of them in rounds.
CHOSEN = {"SGD", "momentum", "Adam", "Ftrl", "Muon", "global_clipnorm", "schedule"}


@pytest.mark.in_gate("Adam")
@pytest.mark.parametrize(
    "make",
    [pytest.param(each.values[0], id=each.id) for each in RULES if each.id in CHOSEN],
)
def test_optimizer(strategy, data, make):
    model = assert_as_one_process(
        strategy, lambda: mlp(optimizer=make()), data, rtol=1e-3, atol=2e-4
    )
    assert int(model.optimizer.iterations) == 2 * ROUNDS


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: optimizers.SGD(0.05, gradient_accumulation_steps=2),
            id="gradient_accumulation_steps",
        ),
        pytest.param(
            lambda: optimizers.SGD(
                0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
            ),
            id="ema_overwrite_frequency",
        ),
        pytest.param(
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.05)),
            id="LossScaleOptimizer",
        ),
    ],
)
def test_what_asynchronous_training_refuses(strategy, data, make):
    """The optimizer runs once per round, alone."""
    assert_as_one_process(strategy, lambda: mlp(optimizer=make()), data)


@pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="Keras has it since 3.15"
)
def test_multi_optimizer(strategy, data):
    """Each of its optimizers runs once per round."""

    def build():
        rules = optimizers.OptimizerMap(optimizers.SGD(0.05))
        rules["hidden"] = optimizers.Adam(0.02)
        return compiled(
            layers.Dense(8, "tanh", name="hidden"),
            layers.Dense(1),
            optimizer=optimizers.MultiOptimizer(rules),
        )

    assert_as_one_process(strategy, build, data, rtol=1e-3, atol=2e-4)


def in_shards(rows, columns):
    table = layers.Embedding(rows, columns)
    with tfdist.partition_variables(tfdist.FixedShardsPartitioner(2)):
        table.build()
    return table


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (layers.Embedding, optimizers.Adam),
        (in_shards, optimizers.SGD),
        (in_shards, functools.partial(optimizers.SGD, clipvalue=0.01)),
        (tfdist.embedding.Embedding, optimizers.Adam),
    ],
)
def test_embedding(strategy, ids, make, kind):
    """Keras's Adam squares the parts of a row's gradient in one process: so, a dense one."""

    def ours():
        return bag_of(kind(23, 4), make(0.1))

    def dense():
        return bag_of(DenseLookup(), make(0.1))

    model = assert_as_one_process(strategy, dense, ids, around=ours, atol=1e-3)
    if kind is not layers.Embedding:
        assert len(model.layers[0].weights[0]._value.shards) == 2


@pytest.mark.parametrize("kind", [in_shards, tfdist.embedding.Embedding])
def test_no_batch_has_rows_of_the_second_shard(strategy, ids, kind):
    def ours():
        return bag_of(kind(23, 4), optimizers.SGD(0.1))

    def dense():
        return bag_of(DenseLookup(), optimizers.SGD(0.1))

    data = ids[0] % 7, ids[1]
    assert_as_one_process(strategy, dense, data, around=ours)


class DenseLookup(layers.Layer):
    """What an embedding computes, with a dense gradient."""

    def build(self, input_shape):
        self.table = self.add_weight((23, 4), "uniform", name="embeddings")

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, 23), self.table)


def bag_of(embedding, optimizer):
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            embedding,
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def columns(shape, dtype, axis=0):
    return [1] * (len(shape) - 1) + [2] if shape[-1] > 1 else [1] * len(shape)


@pytest.mark.parametrize(
    ("options", "partitioner"),
    [({}, columns), ({"global_clipnorm": 0.5}, HALVES)],
    ids=["plain-columns", "clipped-rows"],
)
def test_variables_in_shards(strategy, data, partitioner, options):
    def build():
        return mlp(optimizer=optimizers.Adam(0.02, **options))

    def ours():
        with tfdist.partition_variables(partitioner):
            return build()

    model = assert_as_one_process(strategy, build, data, around=ours, atol=1e-4)
    assert len(model.weights[0]._value.shards) == 2


@pytest.mark.in_gate
def test_steps_in_one_message(strategy, data):
    """Many rounds per message, and the rest of an epoch."""

    def build():
        return mlp(optimizer=optimizers.Adam(0.02), steps_per_execution=4)

    assert_as_one_process(strategy, build, data, epochs=3, atol=1e-4)


def test_worker_many_rounds_ahead(strategy, data):
    """It waits for a round that comes long after those that the other one waits for."""
    strategy.consistency = tfdist.Synchronous(replicas_to_aggregate=1)
    x, y = np.tile(data[0], (3, 1)), np.tile(data[1], (3, 1))
    fit = {"batch_size": 2, "shuffle": False, "verbose": 0, "epochs": 2}
    weights = []
    for scope in (strategy.scope(), contextlib.nullcontext()):
        keras.utils.set_random_seed(0)
        with scope:
            model = mlp(steps_per_execution=10)
        model.fit(x, y, **fit)
        weights.append(model.get_weights())
    assert_alike(*weights, rtol=1e-4, atol=1e-5)


def test_mask(strategy):
    """Batches count by the steps that the mask leaves, as in the mean of one process."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, (SAMPLES, 5))
    for row, length in enumerate(rng.integers(1, 6, SAMPLES)):
        ids[row, length:] = 0
    ids[:20, 1:] = 0

    def build():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int64"),
                layers.Embedding(9, 4, mask_zero=True),
                layers.Dense(1),
            ]
        )
        model.compile(optimizers.SGD(0.3), "mse")
        return model

    y = rng.normal(size=(SAMPLES, 5, 1)).astype("float32")
    # Keras counts the loss of a batch by its examples.
    assert_as_one_process(strategy, build, (ids, y), same_loss=False)


def test_train_on_batch_is_a_round(strategy, data):
    with strategy.scope():
        model = mlp()
    one = mlp()
    one.set_weights(model.get_weights())
    x, y = data
    for _ in range(3):
        model.train_on_batch(x, y)
        one.train_on_batch(x, y)
    assert int(model.optimizer.iterations) == 3
    assert_alike(model.get_weights(), one.get_weights(), rtol=1e-5, atol=1e-6)


class Learning(keras.Sequential):
    """Each step draws from numbers that the steps before have made more likely."""

    def train_step(self, batch):
        tf.raw_ops.ThreadUnsafeUnigramCandidateSampler(
            true_classes=tf.zeros([3, 1], tf.int64),
            num_true=1,
            num_sampled=1,
            unique=False,
            range_max=3,
        )
        return super().train_step(batch)


@pytest.mark.parametrize("cls", [keras.Sequential, Learning])
def test_a_step_with_a_state_of_its_own_has_a_message(strategy, data, monkeypatch, cls):
    steps = []
    function = WorkerFunction.function
    monkeypatch.setattr(
        WorkerFunction,
        "function",
        lambda self, source, count: (
            steps.append(count) or function(self, source, count)
        ),
    )
    with strategy.scope():
        model = cls([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(*data, batch_size=4, verbose=0)
    assert (max(steps) == 1) == (cls is Learning)


@pytest.mark.parametrize("at_once", [1, 8])
def test_seeded_draws_are_of_each_step(strategy, at_once):
    x = np.arange(STEPS, dtype="float32")[:, None]
    with strategy.scope():
        model = Drawing(inside_a_branch)
        model.compile("sgd", "mse", steps_per_execution=at_once)
    model.fit(x, x * 0, batch_size=1, shuffle=False, verbose=0)
    assert len(np.unique(model.drawn.numpy())) > STEPS - 5


def test_switching(strategy, data):
    """Steps are traced for each policy; asynchronous ones count singly again."""
    with strategy.scope():
        model = mlp()
    fit = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    model.fit(*data, **fit)
    assert int(model.optimizer.iterations) == ROUNDS
    strategy.consistency = tfdist.Asynchronous()
    model.fit(*data, **fit)
    assert int(model.optimizer.iterations) == ROUNDS + 7
    strategy.consistency = tfdist.Synchronous()
    model.fit(*data, **fit)
    assert int(model.optimizer.iterations) == 2 * ROUNDS + 7


def test_refused_again_when_asynchronous(strategy, data):
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(gradient_accumulation_steps=2))
    model.fit(*data, batch_size=BATCH, verbose=0)
    strategy.consistency = tfdist.Asynchronous()
    with raises(ValueError, "gradient_accumulation_steps"):
        model.fit(*data, batch_size=BATCH, verbose=0)


class TwoSteps(keras.Model):
    """Applies gradients twice in a step."""

    def __init__(self, times):
        super().__init__()
        self.dense = layers.Dense(1)
        self.dense.build((None, 4))
        self.built = True
        self.times = times

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        x, y = batch
        for _ in range(self.times):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": tf.reduce_mean((self(x) - y) ** 2)}


@pytest.mark.parametrize(("times", "why"), [(2, "twice"), (0, "applies no gradients")])
def test_train_step_that_does_not_apply_once(strategy, data, times, why):
    with strategy.scope():
        model = TwoSteps(times)
        model.compile("sgd")
    with pytest.raises(ValueError, match=why):
        model.fit(*data, batch_size=BATCH, verbose=0)


def test_custom_train_step(strategy, data):
    def build():
        model = TwoSteps(1)
        model.compile(optimizers.SGD(0.05))
        return model

    # Its loss is that of the last batch.
    same = {"same_loss": False, "rtol": 1e-5, "atol": 1e-6}
    assert_as_one_process(strategy, build, data, **same)


def test_error_of_a_step(strategy, data):
    """The gradients of the round it broke count in no later one."""

    def build():
        return compiled(layers.Lambda(checked, output_shape=(4,)), layers.Dense(1))

    with strategy.scope():
        model = build()
    one = build()
    one.set_weights(model.get_weights())
    x, y = data
    broken = x.copy()
    broken[BATCH] = np.nan
    with raises(tf.errors.InvalidArgumentError, "not finite"):
        model.fit(broken, y, batch_size=BATCH, shuffle=False, verbose=0)
    model.set_weights(one.get_weights())
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    one.fit(x, y, batch_size=WORKERS * BATCH, shuffle=False, verbose=0)
    assert_alike(model.get_weights(), one.get_weights(), rtol=1e-5, atol=1e-6)


def checked(x):
    return tf.debugging.check_numerics(x, "not finite")
