"""Embedding tables that grow, whenever steps may run and values move."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import _tf
from tfdist.data import from_source
from tfdist.embedding.growing.initial_rows import rows_by
from tfdist.parameter_server.exchange import narrow

pytestmark = [
    pytest.mark.parameter_server,
    # Each test sets its own policy. In rounds, all features are tested as they are.
    pytest.mark.steps_write,
    # Of the ps: what they keep of ids and of rounds, and whose turn it is.
    pytest.mark.sets_new_rows(r"embeddings|^(while/input_)?\d+$"),
    pytest.mark.sets_own_value(r"^(while/input_)?\d+$|turns"),
]

DIM, SIZE, BATCH, STEPS = 4, 6, 4, 48
RATE = 2.0**-10
SLOPE = 1 + 2.0**-8  # Which bfloat16 would round to 1.
ROWS = rows_by(keras.initializers.RandomUniform(), DIM, "float32")
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 300)


UNDER = {
    "asynchronous": {},
    "synchronous": {"consistency": tfdist.Synchronous()},
    "every": {"exchange": tfdist.ExchangeEvery(5)},
    "when_changed": {"exchange": tfdist.WhenChanged(1e9, max_age=10**6)},
    "bfloat16": {"wire_dtype": "bfloat16"},
}


@pytest.fixture
def under(strategy, monkeypatch):
    """Has the strategy train with other arguments than it was built with."""
    monkeypatch.setattr(strategy, "_consistency", tfdist.Asynchronous())
    monkeypatch.setattr(strategy, "_measures", False)
    monkeypatch.setattr(narrow, "LEAST_BYTES", 4 * DIM)

    def set_to(consistency=None, **options):
        for name, value in options.items():
            monkeypatch.setattr(strategy, name, value)
        if consistency is not None:
            strategy.consistency = consistency

    yield set_to
    gc.collect()  # Now, while the ps answer.


class Shift(keras.layers.Layer):
    """A weight that all rows share, and that moves as the exchange says."""

    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:], initializer="zeros", name="shift")

    def call(self, x):
        return x + self.shift


def built():
    """Returns a table and a model whose gradients depend on the ids alone."""
    table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=300, seed=0)
    inputs = keras.Input((SIZE,), dtype="int64")
    model = keras.Model(inputs, Shift()(table(inputs)))
    # Beside such an epsilon, an accumulator is nothing: an update is RATE times the
    # gradient, in whatever order. The accumulators are the sums of its squares.
    optimizer = keras.optimizers.Adagrad(RATE * 2.0**20, 1.0, epsilon=2.0**40)
    model.compile(optimizer, lambda _, y: SLOPE * tf.reduce_sum(y, [1, 2]))
    return table, model


def accumulator_of(model, weight):
    [index] = [i for i, each in enumerate(model.trainable_variables) if each is weight]
    return _tf.value_of(model.optimizer._accumulators[index]).numpy()


def drawn(ids=IDS):
    """Two batches in a row bring the same new ids: workers create rows together."""
    rng = np.random.default_rng(1)
    firsts = [8 * (step // 2) for step in range(STEPS)]
    return np.concatenate([rng.choice(ids[i : i + 24], (BATCH, SIZE)) for i in firsts])


def planned(x, in_an_update):
    """Returns all ids, and of each the sum of its gradients and that of their squares."""
    ids, places = np.unique(x, return_inverse=True)
    updates = places.reshape(STEPS // in_an_update, -1)
    times = np.array([np.bincount(each, minlength=len(ids)) for each in updates])
    gradients = SLOPE * times / (in_an_update * BATCH)
    return ids, gradients.sum(0)[:, None], (gradients**2).sum(0)[:, None]


# tests/features/test_growing.py has the others: it is run under each `--strategy`.
@pytest.mark.parametrize(
    ("name", "is_leased"),
    [
        ("asynchronous", True),
        ("synchronous", False),
        ("synchronous", True),
        ("every", False),
        ("when_changed", False),
        ("bfloat16", False),
    ],
)
def test_each_id_has_one_row_and_no_gradient_is_lost(
    strategy, under, until_both_ran, tmp_path, name, is_leased
):
    under(**UNDER[name])
    with strategy.scope():
        table, model = built()
    in_an_update = 2 if name == "synchronous" else 1

    def fit(x):
        y, options = np.zeros(len(x), np.float32), {"shuffle": False, "verbose": 0}
        if not is_leased:
            return model.fit(x, y, batch_size=BATCH, **options)
        path = tmp_path / f"{x[0, 0]}.npy"
        np.save(path, x)
        return model.fit(from_source((path, y)).batch(BATCH), **options)

    updates = 0
    # The second ids get rows that the first had.
    for ids in (IDS, IDS + 1):
        x = drawn(ids)
        fits = until_both_ran(lambda x=x: fit(x))
        updates += fits * STEPS // in_an_update
        assert_planned(table, model, *planned(x, in_an_update), fits)
        table.remove(ids)
    assert int(model.optimizer.iterations) == updates
    # Each worker may keep one rounding of what it has sent in bfloat16.
    rtol = 1e-3 if name == "bfloat16" else 1e-6
    expected = np.full((SIZE, DIM), -updates * RATE * SLOPE)
    np.testing.assert_allclose(model.layers[-1].shift.numpy(), expected, rtol=rtol)


def assert_planned(table, model, known, gradients, squares, fits):
    """Asserts that a table has these ids, and their rows that many updates."""
    ids, rows = (np.concatenate(each) for each in zip(*table.export(9), strict=True))
    order = np.argsort(ids)
    np.testing.assert_array_equal(ids[order], known)
    assert table.size() == len(known)
    expected = ROWS(tf.constant(known), 0) - fits * RATE * gradients
    np.testing.assert_allclose(rows[order], expected, rtol=0, atol=1e-6)
    expected = np.repeat(1 + fits * squares, DIM, axis=1)
    accumulators = accumulator_of(model, table.embeddings)[order]
    np.testing.assert_allclose(accumulators, expected, rtol=1e-6)


def test_rounds_train_as_one_process_with_larger_batches(strategy, under):
    under(tfdist.Synchronous())
    x = drawn()
    y = np.float32(x % 7).mean(1, keepdims=True)

    def trained(batch_size):
        keras.utils.set_random_seed(0)
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=1000, seed=0)
        flat = [table, keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((SIZE,), dtype="int64"), *flat])
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
        model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
        return table.lookup(np.unique(x)), model.layers[-1].get_weights()

    with strategy.scope():
        ours = trained(BATCH)
    for mine, theirs in zip(
        tf.nest.flatten(ours), tf.nest.flatten(trained(2 * BATCH)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["every", "when_changed"])
def test_rows_that_are_created_move_in_each_step(strategy, under, name):
    under(**UNDER[name])
    with strategy.scope():
        table, model = built()
    model.fit(drawn(), np.zeros(BATCH * STEPS), batch_size=BATCH, verbose=0)
    in_each_step = " ".join(strategy.exchange_report().in_each_step)
    assert table.embeddings.path in in_each_step
    assert model.layers[-1].shift.path not in in_each_step


def test_a_gradient_that_is_dropped_moves_no_row(strategy, under):
    under(tfdist.Synchronous(backup_workers=1))
    with strategy.scope():
        table, model = built()
    x = drawn()
    history = model.fit(x, np.zeros(len(x)), batch_size=BATCH, verbose=0).history
    updates = int(model.optimizer.iterations)
    assert updates + sum(history["dropped"]) == STEPS
    ids, rows = (np.concatenate(each) for each in zip(*table.export(9), strict=True))
    # Whoever was dropped has looked its ids up.
    assert sorted(ids) == sorted(np.unique(x))
    moved = (ROWS(tf.constant(ids), 0).numpy() - rows).sum(0)
    np.testing.assert_allclose(moved, np.full(DIM, updates * SIZE * RATE * SLOPE), 1e-4)
