"""Files of models whose tables grow, in one process, and models that serve them."""

import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

from ..support.raising import raises

WIDTH, SIZE = 3, 2
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20)
X = np.random.default_rng(1).choice(IDS, (64, SIZE))
Y = np.float32(X[:, :1] % 3)

layers = keras.layers


def model_of(make=None, optimizer=None, **options):
    keras.utils.set_random_seed(0)
    table = (make or tfdist.embedding.DynamicEmbedding)(
        WIDTH, **{"max_rows": 30, **options}
    )
    dtype = "string" if options.get("key_dtype") == "string" else "int64"
    model = keras.Sequential(
        [keras.Input((SIZE,), dtype=dtype), table, layers.Flatten(), layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adagrad(0.1), "mse")
    return model


def fit(model, x=X, epochs=1):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    return model.fit(x, Y, epochs=epochs, **options).history["loss"]


def content(model):
    return {
        i: row.tolist()
        for ids, rows in model.layers[0].export()
        for i, row in zip(ids.tolist(), rows, strict=True)
    }


def by_checkpoint(model, again, path):
    written = tf.train.Checkpoint(model=model).write(str(path / "c"))
    status = tf.train.Checkpoint(model=again).read(written)
    status.assert_existing_objects_matched()
    return again


def by_weights(model, again, path):
    model.save_weights(path / "m.weights.h5")
    again.load_weights(path / "m.weights.h5")
    return again


def by_keras(model, again, path):
    model.save(path / "m.keras")
    return keras.models.load_model(path / "m.keras")


WAYS = [by_checkpoint, by_weights, by_keras]
WAY = pytest.mark.parametrize("way", WAYS)


@pytest.mark.not_in_gate
@WAY
@pytest.mark.parametrize("has_trained", [False, True])
@pytest.mark.parametrize("removed", [0, 7])
def test_a_model_that_is_restored_goes_on_as_the_one_that_was_saved(
    way, has_trained, removed, tmp_path
):
    model, again = model_of(), model_of()
    again.optimizer.build(again.trainable_variables)
    fit(model)
    model.layers[0].remove(np.unique(X)[:removed])
    if has_trained:  # With ids of its own, whose rows go.
        fit(again, X[::-1] + 1)
    again = way(model, again, tmp_path)
    assert content(again) == content(model)
    assert fit(again, epochs=2) == pytest.approx(fit(model, epochs=2), rel=1e-6)
    assert content(again).keys() == content(model).keys()


@pytest.mark.not_in_gate
@WAY
def test_a_full_table_is_restored_again_and_again(way, tmp_path):
    model = model_of(max_rows=len(IDS))
    fit(model)
    before = content(model)
    assert len(before) == len(IDS)
    for _ in range(3):
        model = way(model, model, tmp_path)
        assert content(model) == before


def test_the_second_save_has_what_changed_since_the_first(tmp_path):
    model, again = model_of(), model_of()
    checkpoint = tf.train.Checkpoint(model=model)
    other = tf.train.Checkpoint(model=again)
    fit(model)
    paths, contents = [], []
    for i in range(3):
        paths.append(checkpoint.write(str(tmp_path / str(i))))
        contents.append(content(model))
        model.layers[0].remove(IDS[5 * i : 5 * i + 5])
        model.layers[0].upsert(IDS[-1:] + 1 + i, np.full((1, WIDTH), i))
    for path, expected in zip(paths, contents, strict=True):
        other.read(path).assert_existing_objects_matched()
        assert content(again) == expected


def test_a_table_that_is_built_after_the_restoring_is_restored(tmp_path):
    model = model_of()
    fit(model)
    path = tf.train.Checkpoint(table=model.layers[0]).write(str(tmp_path / "c"))
    layer = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=30)
    tf.train.Checkpoint(table=layer).read(path)
    layer.build()
    np.testing.assert_array_equal(layer.lookup(IDS), model.layers[0].lookup(IDS))


@pytest.mark.not_in_gate
@WAY
def test_what_waits_is_restored(way, tmp_path):
    options = {"admission": tfdist.embedding.CountFilter(9)}
    model = model_of(**options)
    fit(model)
    again = way(model, model_of(**options), tmp_path)
    for each in (model, again):
        fit(each)
    assert content(again).keys() == content(model).keys() != set()


@pytest.mark.not_in_gate
def test_a_file_with_more_rows_than_there_is_room_changes_nothing(tmp_path):
    model, small = model_of(), model_of(max_rows=5)
    fit(model)
    fit(small)
    before = content(small)
    model.save_weights(tmp_path / "m.weights.h5")
    with raises(ValueError, "max_rows=5"):
        small.load_weights(tmp_path / "m.weights.h5")
    assert content(small) == before


def test_only_a_frozen_model_is_exported(tmp_path):
    model = model_of()
    fit(model)
    with raises(ValueError, "tfdist.embedding.frozen"):
        model.export(tmp_path / "m", verbose=False)


def nested(**options):
    inner = model_of(**options)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([inner.inputs[0], inner])
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


def functional(**options):
    inputs = {name: keras.Input((SIZE,), dtype="int64") for name in "ab"}
    table = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=30, **options)
    bag = tfdist.embedding.DynamicEmbeddingBag(WIDTH, max_rows=30)(inputs["a"])
    found = [layers.Flatten()(each) for each in table(inputs).values()]
    outputs = layers.Dense(1)(layers.concatenate([*found, bag]))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


def of_operations(**options):
    ids = keras.Input((SIZE,), dtype="int64")
    rows = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=30, **options)(ids)
    total = keras.ops.sum(rows, axis=-1)
    part = keras.Input((SIZE,))
    inner = keras.Model(part, keras.ops.tanh(layers.Dense(3)(part)) * 2.0)
    model = keras.Model(ids, layers.Dense(1)(inner(total + total[:, ::-1])))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


FROZEN = [
    *(pytest.param(each, marks=pytest.mark.not_in_gate) for each in (model_of, nested)),
    *(functional, of_operations),
]


@pytest.mark.parametrize("make", FROZEN)
def test_a_frozen_model_computes_what_the_model_does(make):
    model, x = make(), {"a": X, "b": X[::-1]} if make is functional else X
    fit(model, x)
    frozen = tfdist.embedding.frozen(model)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(frozen.predict(x, verbose=0), expected, rtol=1e-6)
    fit(model, x)  # The copy stays.
    np.testing.assert_allclose(frozen.predict(x, verbose=0), expected, rtol=1e-6)
    assert not np.allclose(model.predict(x, verbose=0), expected, rtol=1e-6)


@pytest.mark.parametrize("limit", [1, 5])
def test_frozen_keeps_what_was_looked_up_most(limit):
    model = model_of(eviction=tfdist.embedding.EvictRare(1))
    fit(model)
    batches = [np.unique(each) for each in np.split(X, 8)]
    ids, counts = np.unique(np.concatenate(batches), return_counts=True)

    def kept(**options):
        table = tfdist.embedding.frozen(model, **options).layers[0]
        return set(np.concatenate([ids for ids, _ in table.export()] or [[]]).tolist())

    assert kept(min_count=limit + 2) == set(ids[counts >= limit + 2].tolist())
    most = kept(max_rows=limit)
    assert len(most) == limit
    left = [n for i, n in zip(ids.tolist(), counts, strict=True) if i not in most]
    gone = [n for i, n in zip(ids.tolist(), counts, strict=True) if i in most]
    assert not gone or min(gone) >= max(left)


def wrapped():
    return keras.Sequential([keras.Input((SIZE,), dtype="int64"), Holder()])


class Holder(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.table = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=30)

    def build(self, shape):
        self.table.build()

    def call(self, x, training=False):
        return self.table(x, training=training)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (model_of, {"max_rows": 0}, "max_rows must be a positive .*; received 0"),
        (model_of, {"min_count": 1}, "EvictUnseen.*EvictRare"),
        (wrapped, {}, "within a layer that is no functional or sequential"),
        (model_of, {"max_rows": 5}, "EvictUnseen.*EvictRare"),
        (
            lambda: keras.Sequential([layers.Dense(1)]),
            {},
            "no tfdist.embedding.DynamicEmbedding",
        ),
        (lambda: Subclass(), {}, r"functional or sequential .* of Subclass"),
    ],
)
def test_what_cannot_be_frozen_is_refused(make, options, words):
    model = make()
    model(X)
    with pytest.raises(ValueError, match=words):
        tfdist.embedding.frozen(model, **options)


def test_frozen_takes_a_model():
    with raises(TypeError, "received 'model.keras'"):
        tfdist.embedding.frozen("model.keras")


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=30)

    def call(self, x, training=False):
        return self.table(x, training=training)


def test_a_frozen_table_stays_as_it_is():
    model = model_of()
    fit(model)
    table = tfdist.embedding.frozen(model).layers[0]
    np.testing.assert_array_equal(table.lookup(IDS), model.layers[0].lookup(IDS))
    for change in (lambda: table.upsert([1], np.ones((1, WIDTH))), table.evict):
        with raises(RuntimeError, "frozen"):
            change()


SERVES = """
import sys
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
data = np.load(sys.argv[2])
np.testing.assert_allclose(model.serve(data["x"]), data["y"], rtol=1e-6)
assert "tfdist" not in sys.modules
print("equal")
"""


@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_an_exported_model_is_served_without_tfdist(key_dtype, tmp_path, run_python):
    model = model_of(key_dtype=key_dtype)
    x = X.astype(str).astype(object) if key_dtype == "string" else X
    x = tf.constant(x)
    fit(model, x)
    tfdist.embedding.frozen(model).export(tmp_path / "m", verbose=False)
    edges = np.array([[-(2**63), 2**63 - 1]])
    new = tf.constant(
        edges if key_dtype == "int64" else edges.astype(str).astype(object)
    )
    asked = tf.concat([x, new], 0)
    np.savez(
        tmp_path / "d.npz",
        x=asked.numpy().astype(str) if key_dtype == "string" else asked,
        y=model(asked),
    )
    ran = run_python(SERVES, str(tmp_path / "m"), str(tmp_path / "d.npz"))
    assert ran.stdout.strip() == "equal", ran.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Two exports of a table, of which the second is a delta."""
    directory = tmp_path_factory.mktemp("exports")
    model = model_of(follow=True)
    fit_with = {"batch_size": 8, "verbose": 0, "epochs": 2}
    model.fit(X, Y, callbacks=[tfdist.embedding.DeltaExport(directory)], **fit_with)
    return directory


@pytest.fixture
def exports(exported, tmp_path):
    """The same exports, which a test may damage."""
    return shutil.copytree(exported, tmp_path, dirs_exist_ok=True)


def test_exports_have_what_the_table_has(exports):
    ((ids, rows),) = tfdist.embedding.read_export(exports).values()
    assert sorted(ids) == sorted(set(X.flat))
    (first,) = tfdist.embedding.read_export(exports, 1).values()
    assert (dict(zip(*first, strict=True))[ids[0]] != rows[0]).any()


def another_method(path):
    """As if a byte had flipped that says how a file of the archive is compressed."""
    damaged = bytearray(path.read_bytes())
    # In the directory at the end, and in front of the file itself.
    for mark, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        damaged[damaged.index(mark) + offset] = 99
    path.write_bytes(damaged)


def truncate(path):
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "name", "words"),
    [
        (
            os.unlink,
            "export-000002/0-0.npz",
            r"has 0 rows of .* had \d+\. If it was copied",
        ),
        (os.unlink, "export-000002/0-removed.npz", "cannot be read: .*copy it again"),
        (os.unlink, "export-000002/manifest.json", "no whole manifest"),
        (truncate, "export-000001/0-0.npz", "cannot be read"),
        (another_method, "export-000001/0-0.npz", "cannot be read.*compression method"),
        (truncate, "export-000002/manifest.json", "no whole manifest"),
        (
            shutil.rmtree,
            "export-000001",
            "export 1, on which export 2 builds, is not there",
        ),
        (shutil.rmtree, "", "there is no export in .*DeltaExport"),
    ],
)
def test_a_damaged_export_is_not_read(exports, damage, name, words):
    damage(exports / name)
    with pytest.raises(ValueError, match=words):
        tfdist.embedding.read_export(exports)


def test_the_end_of_fit_is_exported(tmp_path):
    model = model_of(follow=True)
    callback = tfdist.embedding.DeltaExport(tmp_path, every="10min")
    model.fit(X, Y, epochs=3, callbacks=[callback], verbose=0)
    ((ids, rows),) = tfdist.embedding.read_export(tmp_path, 2).values()
    np.testing.assert_array_equal(rows, model.layers[0].lookup(ids))


def test_after_an_export_that_failed_the_next_one_is_full(tmp_path, monkeypatch):
    model = model_of(follow=True)
    callback = tfdist.embedding.DeltaExport(tmp_path)
    model.fit(X, Y, callbacks=[callback], verbose=0)
    table = model.layers[0]
    table.remove(X[0, :1])
    with monkeypatch.context() as full_disk:
        full_disk.setattr(np, "savez", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            callback.export()
    callback.export()
    ((ids, _),) = tfdist.embedding.read_export(tmp_path).values()
    assert sorted(ids) == sorted(set(X.flat) - {X[0, 0]})


def test_two_exports_do_not_share_a_directory(exports, tmp_path):
    other = tmp_path / "other"
    callbacks = [
        tfdist.embedding.DeltaExport(other),
        tfdist.embedding.DeltaExport(other),
    ]
    with raises(ValueError, "export 1"):
        model_of(follow=True).fit(X, Y, callbacks=callbacks, verbose=0)
    model = model_of(follow=True, name="other")
    with raises(ValueError, "exports of", "other'"):
        model.fit(X, Y, callbacks=[tfdist.embedding.DeltaExport(exports)], verbose=0)
