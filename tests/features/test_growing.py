"""Embedding tables that grow."""

import gc
import weakref
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.checkpoint.variables import VariableWriter
from tfdist.embedding.growing.growing_shard import GrowingShard
from tfdist.embedding.growing.initial_rows import rows_by

from ..support.raising import raises

# What the ps keep of ids has numbers for names.
pytestmark = [
    pytest.mark.parameter_server,
    pytest.mark.sets_new_rows(r"embeddings|^(while/input_)?\d+$"),
]

layers = keras.layers

DIM, SIZE, STEPS, BATCH = 4, 6, 48, 4
RATE = 2.0**-10
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 40)
ROWS = rows_by(keras.initializers.RandomUniform(), DIM, "float32")


def drawn(rows, seed=1):
    return np.random.default_rng(seed).choice(IDS, (rows, SIZE))


def total(y, y_pred):
    return tf.reduce_sum(y_pred, axis=list(range(1, y_pred.shape.rank)))


def model_of(table, optimizer, loss=total, **options):
    after = [] if loss is total else [layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((SIZE,), dtype="int64"), table, *after])
    model.compile(optimizer, loss, **options)
    return model


@pytest.mark.in_gate("rows-10")
@pytest.mark.feature("Tables that grow: each id gets one row, and no gradient is lost")
@pytest.mark.parametrize("steps_per_execution", [1, 10])
@pytest.mark.parametrize("is_bag", [False, True], ids=["rows", "bags"])
def test_an_id_gets_one_row_and_no_gradient_is_lost(
    strategy, until_both_ran, steps_per_execution, is_bag
):
    with strategy.scope():
        options = {"max_rows": 1000, "seed": 0}
        table = (
            tfdist.embedding.DynamicEmbeddingBag(DIM, "sum", **options)
            if is_bag
            else tfdist.embedding.DynamicEmbedding(DIM, **options)
        )
        model = model_of(
            table, keras.optimizers.SGD(RATE), steps_per_execution=steps_per_execution
        )
    x = drawn(BATCH * STEPS)
    fits = until_both_ran(
        lambda: model.fit(x, np.zeros(len(x)), batch_size=BATCH, verbose=0)
    )
    ids, times = np.unique(x, return_counts=True)
    assert (table.size(), table.report()["created"]) == (len(ids), len(ids))
    expected = ROWS(tf.constant(ids), 0) - fits * times[:, None] * RATE / BATCH
    np.testing.assert_allclose(table.lookup(ids), expected, atol=1e-6)


@pytest.mark.in_gate
@pytest.mark.feature("Tables that grow are saved, and restored into as many rows")
def test_a_table_is_restored_with_its_slots(strategy, tmp_path):
    x, y = drawn(64), np.float32(drawn(64)[:, :1] % 3)

    def built():
        with strategy.scope():
            keras.utils.set_random_seed(0)
            table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)
            model = model_of(table, keras.optimizers.Adagrad(0.1), "mse")
        return table, model, tf.train.Checkpoint(model=model)

    def fit(model):
        # One message, so that the order of its steps is known.
        return model.fit(x, y, batch_size=64, shuffle=False, verbose=0).history["loss"]

    table, model, checkpoint = built()
    fit(model)
    path = checkpoint.write(str(tmp_path / "table"))
    size, losses = table.size(), [fit(model), fit(model)]
    again, other, checkpoint = built()
    fit(other)  # The table has rows of its own by then, and the optimizer slots.
    checkpoint.read(path).assert_existing_objects_matched()
    assert again.size() == size
    np.testing.assert_allclose([fit(other), fit(other)], losses, rtol=1e-6)
    with raises(ValueError, "reserved", "export()", "lookup()"):
        model.get_weights()


@pytest.mark.feature("Tables that grow: `placement_report()` has the rows in use")
def test_the_placement_report_has_the_rows_in_use(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(
            DIM, max_rows=1_000_000, name="reserved"
        )
        model = model_of(table, keras.optimizers.Adagrad(0.1))

    def rows():
        variables = strategy.placement_report().variables
        return [v.spec.shape[0] for v in variables if table.name in v.spec.name]

    assert rows() == [0] * strategy.num_ps
    model.fit(drawn(8), np.zeros(8), batch_size=8, verbose=0)
    of_ps = [each["rows"] for each in table.report()["of_ps"]]
    assert sum(of_ps) == table.size() > 0
    # The table, and its accumulator.
    assert rows() == 2 * of_ps


@pytest.mark.feature("Tables that grow: evaluation creates no row")
def test_evaluation_creates_no_row(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)
        model = model_of(table, "sgd", "mse")
    x = drawn(16)
    loss = model.evaluate(x, np.zeros((16, 1)), batch_size=8, verbose=0)
    assert (loss, table.size()) == (0.0, 0)
    assert not model.predict(x, verbose=0).any()
    assert table.size() == 0


@pytest.mark.feature("Tables that grow: admission, eviction, `upsert`, `remove`")
def test_rows_come_and_go(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(
            DIM,
            max_rows=200,
            admission=tfdist.embedding.CountFilter(2),
            eviction=[
                tfdist.embedding.EvictRare(2.0),
                tfdist.embedding.EvictUnseen(hours=1),
            ],
        )
        model = model_of(table, keras.optimizers.SGD(RATE))
    often, once = np.tile(IDS[:SIZE], (24, 1)), np.tile(IDS[SIZE : 2 * SIZE], (8, 1))
    x = np.concatenate([often, once])
    model.fit(x, np.zeros(32), batch_size=8, shuffle=False, verbose=0)
    assert table.size() == SIZE
    assert not table.lookup(IDS[SIZE : 2 * SIZE]).any()
    # They wait no longer: one more batch, and one is too few to stay.
    model.fit(once, np.zeros(8), batch_size=8, verbose=0)
    assert table.size() == 2 * SIZE
    assert table.evict() == SIZE
    assert set(np.concatenate([ids for ids, _ in table.export(4)])) == set(IDS[:SIZE])
    assert table.upsert(IDS[-2:], np.ones((2, DIM))) == 0
    assert table.evict() == 0
    assert table.remove(IDS[-2:]) == 2
    assert table.size() == SIZE


def test_a_row_that_another_id_had_begins_anew(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(
            DIM, max_rows=2 * strategy.num_ps, seed=0
        )
        model = model_of(table, keras.optimizers.Adagrad(0.5))
    x = np.tile(IDS[:1], (8, SIZE))

    def fit(ids):
        model.fit(ids, np.zeros(8), batch_size=8, verbose=0)
        return table.lookup(ids[0, :1])

    first, second = fit(x), fit(x)
    assert not np.allclose(first - second, ROWS(x[0, :1], 0) - first)
    for _ in range(5):
        assert table.remove(IDS[:1]) == 1
        np.testing.assert_allclose(fit(x), first, rtol=1e-6)
    assert table.report()["refused"] == 0


def test_a_full_table_refuses_new_ids_and_loses_nothing(strategy, caplog):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=2 * strategy.num_ps)
        model = model_of(table, keras.optimizers.SGD(RATE))
    model.fit(drawn(32), np.zeros(32), batch_size=8, verbose=0)
    assert caplog.text.count("is full") == 1
    report = table.report()
    assert report["rows"] == report["max_rows"] == 2 * strategy.num_ps
    assert report["refused"] > 0
    assert caplog.text.count("is full") == 1
    kept = np.concatenate([ids for ids, _ in table.export()])
    assert set(kept) < set(IDS)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("Lamb", {}),
        ("Adafactor", {}),
        ("AdamW", {}),
        ("Adagrad", {"use_ema": True}),
        ("SGD", {"global_clipnorm": 1.0}),
    ],
)
def test_an_optimizer_that_reads_whole_weights_is_refused(strategy, optimizer, options):
    with strategy.scope():
        made = getattr(keras.optimizers, optimizer)(**options)
        model = model_of(
            tfdist.embedding.DynamicEmbedding(DIM, max_rows=200), made, "mse"
        )
    with pytest.raises(ValueError, match=r"table that grows.*(Adagrad|Use clipnorm)"):
        model.fit(drawn(8), np.zeros((8, 1)), verbose=0)


def test_rows_are_exported_and_given_up_while_a_model_trains(strategy, tmp_path):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(
            DIM, max_rows=200, eviction=tfdist.embedding.EvictRare(3.0), name="table"
        )
        model = model_of(table, keras.optimizers.SGD(RATE))
    often = np.tile(IDS[:SIZE], (32, 1))
    x = np.concatenate([often, np.tile(IDS[SIZE : 2 * SIZE], (8, 1))])
    exports = tmp_path / "exports"
    callbacks = [tfdist.embedding.DeltaExport(exports), tfdist.embedding.EvictRows()]
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(x, np.zeros(40), callbacks=callbacks, **options)
    # The export comes first, so the second has what the first eviction gave up.
    assert set(np.concatenate([ids for ids, _ in table.export()])) == set(IDS[:SIZE])
    (found,) = tfdist.embedding.read_export(exports, 1).values()
    assert set(found[0]) == set(IDS[: 2 * SIZE])
    ids, rows = tfdist.embedding.read_export(exports)[table.path]
    assert set(ids) == set(IDS[: 2 * SIZE])
    is_kept = np.isin(ids, IDS[:SIZE])
    np.testing.assert_array_equal(rows[is_kept], table.lookup(ids[is_kept]))


def test_rows_are_not_given_up_within_an_epoch(strategy):
    """Whether a step is under way just then or not."""
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)
        model = model_of(table, keras.optimizers.SGD(RATE))
    done = []

    def evict(batch, logs):
        if batch == 1:
            model.evaluate(drawn(8), np.zeros(8), verbose=0)
        with raises(RuntimeError, "evict", "end of an epoch"):
            table.evict()
        done.append(batch)

    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=evict, on_epoch_end=lambda *_: done.append(table.evict())
    )
    options = {"batch_size": 8, "epochs": 2, "verbose": 0}
    model.fit(drawn(24), np.zeros(24), callbacks=[callback], **options)
    assert done == [0, 1, 2, 0] * 2


def test_strings_of_numpy_are_refused_in_words(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200, key_dtype="string")
        model = keras.Sequential([keras.Input((), dtype="string"), table])
        model.compile("sgd", total)
    words = np.array(["a", "bc"])
    with raises(ValueError, "Invalid dtype") as told:
        model.fit(words, np.zeros(2), verbose=0)
    if hasattr(told.value, "__notes__"):  # From Python 3.11 on.
        assert "tf.constant(x)" in told.value.__notes__[0]
    model.fit(tf.constant(words), np.zeros(2), verbose=0)
    assert table.size() == 2


class Subclass(keras.Model):
    """Its own `call` does not say whether it trains, and `fit` builds it."""

    def __init__(self):
        super().__init__()
        self.table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)

    def call(self, x):
        return self.table(x)


def test_a_model_that_fit_builds_creates_rows_and_leaves_none_behind(strategy):
    with strategy.scope():
        model = Subclass()
        model.compile("adagrad", total)
    model.fit(drawn(8), np.zeros(8), batch_size=8, verbose=0)
    size = model.table.size()
    assert size > 0
    model.evaluate(drawn(8, seed=2), np.zeros(8), verbose=0)
    assert model.table.size() == size
    table = weakref.ref(model.table.table)
    del model
    keras.utils.clear_session()
    gc.collect()
    assert table() is None


def test_a_file_of_keras_has_a_table_and_its_slots(strategy, tmp_path):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)
        model = model_of(table, keras.optimizers.Adagrad(0.1), "mse")
    x, y = drawn(64), np.float32(drawn(64)[:, :1] % 3)

    def fit():
        return model.fit(x, y, batch_size=64, shuffle=False, verbose=0).history["loss"]

    fit()
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    losses = [fit(), fit()]
    table.upsert(IDS[:3], np.ones((3, DIM)))
    model.load_weights(path)
    np.testing.assert_allclose([fit(), fit()], losses, rtol=1e-6)
    with raises(ValueError, "grows", ".keras"):
        model.save(tmp_path / "old.h5")
    assert not (tmp_path / "old.h5").exists()


def test_a_table_and_its_slots_are_saved_in_one_order(strategy, monkeypatch):
    """Of two orders, the second could have rows that a late step creates meanwhile."""
    found = Counter()
    in_use = GrowingShard.in_use

    def noted(shard):
        found[shard] += 1
        return in_use(shard)

    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(DIM, max_rows=200)
        model = model_of(table, keras.optimizers.Adam(0.1))
        model.optimizer.build(model.trainable_variables)
    monkeypatch.setattr(GrowingShard, "in_use", noted)
    VariableWriter(model=[*model.variables, *model.optimizer.variables])
    assert found == dict.fromkeys(table.table.shards, 1)
