"""Layers whose tables grow, in one process: inputs, bags, and what is refused."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.embedding.growing.hashing import ids_of_strings
from tfdist.embedding.growing.initial_rows import rows_by
from tfdist.variables.initial_value import Unwritten
from tfdist.variables.variable import each_row_once

from ..support.raising import raises

WIDTH = 3
ROWS = rows_by(keras.initializers.RandomUniform(), WIDTH, "float32")


def layer_of(**options):
    layer = tfdist.embedding.DynamicEmbedding(
        WIDTH, **{"max_rows": 50, "seed": 0, **options}
    )
    layer.build()
    return layer


def bag_of(combiner="mean", **options):
    layer = tfdist.embedding.DynamicEmbeddingBag(
        WIDTH, combiner, **{"max_rows": 50, "seed": 0, **options}
    )
    layer.build()
    return layer


def first(ids):
    ids = tf.convert_to_tensor(ids)
    is_text = ids.dtype == tf.string
    ids = ids_of_strings(ids) if is_text else tf.cast(ids, tf.int64)
    return ROWS(ids, 0).numpy()


INPUTS = {
    "scalar": tf.constant(5, tf.int64),
    "vector": tf.constant([5, -5, 5], tf.int32),
    "cube": tf.constant([[[1, 2], [2**62, -(2**63)]]], tf.int64),
    "nothing": tf.zeros([0, 4], tf.int64),
    "small": tf.constant([[0, 255]], tf.uint8),
}


@pytest.mark.parametrize("name", INPUTS)
def test_ids_of_any_shape(name):
    ids = INPUTS[name]
    found = layer_of()(ids, training=True)
    expected = first(tf.cast(tf.reshape(ids, [-1]), tf.int64))
    np.testing.assert_array_equal(found, expected.reshape(*ids.shape, WIDTH))


def test_ragged_ids_have_ragged_rows():
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64)
    found = layer_of()(ids, training=True)
    np.testing.assert_array_equal(found.flat_values, first([1, 2, 3]))
    assert found.nested_row_splits[1].numpy().tolist() == [0, 2, 2, 3]


def test_strings_are_hashed():
    words = np.array([["a", "ä"], ["a", ""]])
    layer = layer_of(key_dtype="string")
    found = layer(tf.constant(words), training=True)
    np.testing.assert_array_equal(found[0], first(words[0]))
    np.testing.assert_array_equal(layer.lookup(["a", "never"])[1], 0)
    assert layer.remove("a") == 1


def test_features_share_a_table():
    layer = layer_of()
    features = {
        "a": tf.constant([[1, 2]]),
        "b": [tf.ragged.constant([[2], [3, 4]]), tf.constant([5], tf.int64)],
    }
    found = layer(features, training=True)
    np.testing.assert_array_equal(found["a"], [first([1, 2])])
    np.testing.assert_array_equal(found["b"][0].flat_values, first([2, 3, 4]))
    np.testing.assert_array_equal(found["b"][1], first([5]))
    assert layer.size() == 5


def test_nothing_but_training_creates_rows():
    layer, ids = layer_of(), tf.constant([1, 2])
    assert not np.any(layer(ids))
    assert not np.any(layer(ids, training=False))
    assert not layer.lookup([1, 2]).any()
    assert layer.size() == 0
    layer(ids, training=True)
    np.testing.assert_array_equal(layer(ids), first([1, 2]))


def test_a_layer_that_does_not_train_creates_no_rows():
    for make in (layer_of, bag_of):
        layer = make()
        layer.trainable = False
        layer(tf.constant([[1, 2]]), training=True)
        assert layer.size() == 0


BAGS = {
    "ragged": tf.ragged.constant([[1, 2, 1], [], [3]], dtype=tf.int64),
    "sparse": tf.sparse.SparseTensor(
        [[0, 0], [0, 1], [0, 2], [2, 4]], tf.constant([1, 2, 1, 3], tf.int64), [3, 5]
    ),
    "padded": tf.constant([[1, -1, 2, 1], [-1] * 4, [-1, 3, -1, -1]], tf.int64),
}
WEIGHTS = {
    "ragged": tf.ragged.constant([[1.0, 2.0, 3.0], [], [0.5]]),
    "sparse": BAGS["sparse"].with_values(tf.constant([1.0, 2.0, 3.0, 0.5])),
    "padded": tf.constant([[1.0, 9, 2, 3], [9.0] * 4, [9, 0.5, 9, 9]]),
}
SCALE = {"sum": lambda w: 1.0, "mean": np.sum, "sqrtn": lambda w: np.sqrt(sum(w * w))}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", SCALE)
@pytest.mark.parametrize("kind", BAGS)
def test_bags_are_combined(kind, combiner, is_weighted):
    weights = WEIGHTS[kind] if is_weighted else None
    found = bag_of(combiner)(BAGS[kind], weights=weights, training=True)
    w, last = np.array([1.0, 2, 3]), np.array([0.5])
    if not is_weighted:
        w, last = np.ones(3), np.ones(1)
    expected = [
        w @ first([1, 2, 1]) / SCALE[combiner](w),
        np.zeros(WIDTH),
        last @ first([3]) / SCALE[combiner](last),
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_bags_of_strings_are_padded_by_nothing():
    words = tf.constant([["a", "", "b"], ["", "", ""]])
    found = bag_of("sum", key_dtype="string")(words, training=True)
    expected = [first(["a", "b"]).sum(0), np.zeros(WIDTH)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


RAGGED, SPARSE = BAGS["ragged"], BAGS["sparse"]


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (RAGGED, tf.ones([3, 3])),
        (RAGGED, tf.ragged.constant([[1.0]])),
        (RAGGED, tf.ragged.constant([[1.0], [1.0, 1.0], [1.0]])),
        (SPARSE, tf.ones([3, 5])),
        (SPARSE, RAGGED),
        (BAGS["padded"], tf.ones([3, 1])),
        (BAGS["padded"], RAGGED),
    ],
)
def test_weights_that_do_not_fit_are_refused(ids, weights):
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)) as told:
        bag_of()(ids, weights=weights)
    assert "weight" in str(told.value)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (tf.constant([1, 2]), r"a tensor \[batch, any\]"),
        ({"a": tf.constant([[1]])}, "received a dict: call it once for each feature"),
        (tf.ragged.constant([[[1]], [[2, 3]]], dtype=tf.int64), "matrix"),
        (
            tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1]),
            "tf.sparse.reorder",
        ),
    ],
)
def test_bags_of_another_form_are_refused(ids, words):
    with pytest.raises(
        (TypeError, ValueError, tf.errors.InvalidArgumentError), match=words
    ):
        bag_of("sum")(ids, training=True)


NOT_IDS = [
    ({}, tf.constant([1.0]), "are float32, .*cast them"),
    ({}, tf.constant(["a"]), "are of string, and its key_dtype is 'int64'"),
    (
        {"key_dtype": "string"},
        tf.constant([1]),
        "are of int32, .*key_dtype is 'string'",
    ),
    ({}, tf.constant([2**63], tf.uint64), r"uint64, .*tf.bitcast\(ids, tf.int64\)"),
    ({}, tf.sparse.from_dense([[1]]), "DynamicEmbeddingBag"),
    # Where the model is written, and not first where it is fit.
    ({}, keras.Input((2,)), r"are float32, .*keras.Input\(shape, dtype='int64'\)"),
]


@pytest.mark.parametrize(("options", "ids", "words"), NOT_IDS)
def test_ids_of_another_type_are_refused(options, ids, words):
    with pytest.raises(TypeError, match=words):
        layer_of(**options)(ids, training=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_rows": 0}, "max_rows must be a positive whole number; received 0"),
        ({"max_rows": 1e6}, "whole number; received 1000000.0"),
        ({"output_dim": -1}, "output_dim must be .*; received -1"),
        ({"key_dtype": "int32"}, "int64 or string; received 'int32'"),
        ({"dtype": "int32"}, "a floating one, .*received dtype='int32'"),
        ({"seed": 0.5}, "seed must be .*; received 0.5"),
        ({"combiner": "max"}, "one of mean, sqrtn, sum; received 'max'"),
        ({"padding": 0.5}, "a whole number such as -1; received 0.5"),
        (
            {"mask_zero": True, "input_dim": 9},
            r"Bag has no mask_zero \(0 is .*; no input_dim \(there is no vocabulary.*max_",
        ),
        ({"embeddings_regularizer": "l2"}, "activity_regularizer= has the rows of the"),
    ],
)
def test_options_that_do_not_exist(options, words):
    with pytest.raises(ValueError, match=words):
        tfdist.embedding.DynamicEmbeddingBag(
            **{"output_dim": 2, "max_rows": 5, **options}
        )


def test_more_rows_than_a_tensor_has_are_refused():
    with raises(ValueError, "max_rows=5000000000"):
        layer_of(max_rows=5_000_000_000)


@pytest.mark.not_in_gate
def test_more_bytes_than_there_are_are_not_reserved():
    with raises(ValueError, "2,147,483,648,000 bytes", "max_rows"):
        Unwritten()([2**30, 500])


@pytest.mark.not_in_gate
def test_more_bytes_than_a_process_has_are_refused():
    with raises(
        ValueError, "858,993,458,400,000 bytes", "Adagrad 1", "ParameterServer"
    ):
        tfdist.embedding.DynamicEmbedding(100_000, max_rows=2**31 - 3).build()


@pytest.mark.parametrize(
    ("layer", "sizes", "words"),
    [
        (
            tfdist.embedding.DynamicEmbedding,
            (2,),
            "DynamicEmbedding needs max_rows.*reserve",
        ),
        (
            tfdist.embedding.DynamicEmbedding,
            (2, "uniform"),
            r"all else by its name; .*'uniform'",
        ),
        (
            tfdist.embedding.DynamicEmbedding,
            (1000, 16),
            r"Write .*Embedding\(16, max_rows=1000\)",
        ),
        (
            tfdist.embedding.DynamicEmbeddingBag,
            (1000, 16),
            r"Write .*Bag\(16, max_rows=1000\)",
        ),
    ],
)
def test_sizes_that_no_layer_can_be_made_of(layer, sizes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        layer(*sizes)


@pytest.mark.parametrize("ids", [[2**64], None, [[1], [2, 3]], [1, None]])
@pytest.mark.parametrize("call", ["lookup", "remove"])
def test_what_is_no_id(call, ids):
    words = f"are whole numbers of int64, as a list.*received {re.escape(str(ids))}"
    with pytest.raises(TypeError, match=words):
        getattr(layer_of(), call)(ids)


@pytest.mark.parametrize(
    ("ids", "rows", "words"),
    [
        (
            [1, 2],
            np.ones((2, 1)),
            r"of the shape \(2, 3\) for 2 ids; received \(2, 1\)",
        ),
        ([1], [["a"] * 3], r"rows of float32 of the shape \(1, 3\): could not convert"),
        ([1, 3, 1], np.ones((3, WIDTH)), "each id once; received 1 at 0 and 1 at 2"),
        (["a", "a"], np.ones((2, WIDTH)), "each id once; received a at 0 and a at 1"),
        (
            range(60),
            np.ones((60, WIDTH)),
            "60 ids cannot .* max_rows=50: build it with",
        ),
    ],
)
def test_what_is_no_upsert(ids, rows, words):
    is_text = isinstance(ids[0], str)
    layer = layer_of(key_dtype="string" if is_text else "int64")
    with pytest.raises(ValueError, match=words):
        layer.upsert(ids, rows)
    assert layer.size() == 0


@pytest.mark.parametrize("chunk", [0, -1, 1.5])
def test_a_chunk_has_rows(chunk):
    with pytest.raises(ValueError, match=f"chunk must be .*received {chunk}"):
        list(layer_of().export(chunk))


@pytest.mark.parametrize("call", ["size", "report", "export", "lookup", "evict"])
def test_a_table_that_is_not_built_says_so(call):
    layer = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=5)
    with raises(ValueError, "dynamic_", "first call"):
        list(getattr(layer, call)(*([[1]] if call == "lookup" else [])))


def test_rows_are_set_removed_exported_and_counted():
    layer = layer_of(max_rows=4)
    assert layer.upsert([7, 8, 9], np.arange(9).reshape(3, 3)) == 0
    assert layer.upsert([9, 10, 11], np.ones((3, 3))) == 1
    np.testing.assert_array_equal(
        layer.lookup([8, 9, 12]), [[3, 4, 5], [1] * 3, [0] * 3]
    )
    assert layer.remove([7, 7, 12]) == 1
    found = list(layer.export(chunk=2))
    assert sorted(np.concatenate([ids for ids, _ in found]).tolist()) == [8, 9, 10]
    assert [len(ids) for ids, _ in found] == [2, 1]
    report = layer.report()
    assert (report["rows"], report["created"], report["removed"]) == (3, 4, 1)
    assert (report["refused"], report["max_rows"]) == (1, 4)
    assert report["bytes"] == 3 * WIDTH * 4


def test_nothing_is_looked_up_where_no_id_is_asked_for():
    layer = layer_of()
    assert layer.lookup([]).shape == (0, WIDTH)
    assert layer.remove([]) == 0
    assert layer.upsert([], np.zeros((0, WIDTH))) == 0
    assert list(layer.export()) == []


class _TwoReplicas:
    num_replicas_in_sync = 2


def test_under_replicas_a_table_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(tf.distribute, "get_strategy", _TwoReplicas)
    with raises(ValueError, "_TwoReplicas", "Use"):
        layer_of()


CONFIGS = [
    {},
    {"key_dtype": "string", "seed": 5, "admission": tfdist.embedding.CountFilter(3)},
    {
        "admission": tfdist.embedding.ProbabilityFilter(0.5),
        "eviction": [
            tfdist.embedding.EvictRare(2, 0.5),
            tfdist.embedding.EvictUnseen(3),
        ],
        "embeddings_initializer": keras.initializers.TruncatedNormal(0.5, 2.0),
    },
    {"eviction": tfdist.embedding.EvictSmall(0.5), "combiner": "sqrtn", "padding": 0},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_layer_is_made_again_from_its_config(config):
    layer = tfdist.embedding.DynamicEmbeddingBag(WIDTH, max_rows=9, **config)
    data = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(data)
    assert again.get_config() == layer.get_config()
    assert (again.admission, again.eviction) == (layer.admission, layer.eviction)


def model_of(layer, optimizer, size=3):
    after = [keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((size,), dtype="int64"), layer, *after])
    model.compile(optimizer, "mse")
    return model


X = np.random.default_rng(0).integers(0, 20, (64, 3))
Y = np.float32(X[:, :1] % 3)


class Whole(keras.layers.Embedding):
    """Has all rows, and one gradient for an id that a batch has several times."""

    def call(self, ids):
        return each_row_once(
            lambda unique: tf.gather(self.embeddings.value, unique), ids, [WIDTH]
        )


@pytest.mark.not_in_gate
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "rmsprop"])
def test_it_trains_as_a_table_that_has_all_rows(optimizer):
    keras.utils.set_random_seed(0)
    growing = model_of(layer_of(), optimizer)
    keras.utils.set_random_seed(0)
    whole = model_of(Whole(20, WIDTH), optimizer)
    whole.layers[0].set_weights([first(np.arange(20))])
    histories = [
        model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
        for model in (growing, whole)
    ]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        growing.layers[0].lookup(np.arange(20)), whole.layers[0].embeddings, atol=1e-5
    )


@pytest.mark.not_in_gate
@pytest.mark.parametrize("optimizer", ["Lamb", "Adafactor", "Ftrl"])
def test_rows_that_nobody_has_yet_do_not_reach_an_optimizer(optimizer):
    losses = []
    for max_rows in (20, 500):
        keras.utils.set_random_seed(0)
        make = getattr(keras.optimizers, optimizer)
        model = model_of(layer_of(max_rows=max_rows), make())
        history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert np.isfinite(losses).all()


def test_xla_is_not_asked_for_what_it_does_not_have():
    model = model_of(layer_of(), "sgd")
    model.compile("sgd", "mse", jit_compile=True)
    model.fit(X, Y, verbose=0)
    assert model.layers[0].size() == 20
