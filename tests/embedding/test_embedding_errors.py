"""Errors of an embedding lookup."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.embedding.aggregated_lookup import (
    embedding_lookup_sparse_with_distributed_aggregation as lookup,
)

from ..support.raising import raises

IDS = tf.sparse.from_dense([[1, 2], [3, 0]])
InvalidArgument = tf.errors.InvalidArgumentError


def shards(*sizes, dim=2, name="words"):
    return [tf.Variable(tf.ones([size, dim]), name=name) for size in sizes]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], r"params must be the shards of a table.*received \[\]"),
        (None, "or one sharded variable; received None"),
        (lambda: shards(1, 3), r"'mod' gives .* words \[2, 2\] of its 4 rows"),
        (lambda: shards(2, 3), r"\[3, 2\] of its 5 rows; received .* \[2, 3\] rows"),
        (lambda: [*shards(2), *shards(2, dim=3)], r"only in their number of rows"),
        (lambda: tf.Variable([1.0]), r"shape \[rows, dim\]; received \[\(1,\)\]"),
        (lambda: tf.Variable([[1]]), "must have a float dtype, not int32"),
    ],
)
def test_shards_that_do_not_form_a_table(params, words):
    with pytest.raises(ValueError, match=words):
        lookup(params() if callable(params) else params, IDS, None)


def test_a_sharded_variable_is_split_by_div():
    from tfdist import _tf

    table = _tf.ShardedVariable(shards(2, 2))
    with raises(ValueError, "'div'", "received 'mod'"):
        lookup(table, IDS, None, "mod")
    assert lookup(table, IDS, None, "div").shape == (2, 2)
    by_itself = lookup(table, IDS, None, combiner="sum")
    np.testing.assert_array_equal(by_itself, lookup(table, IDS, None, "div", "sum"))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"combiner": "max"}, "combiner .* one of mean, sqrtn, sum; received 'max'"),
        (
            {"partition_strategy": "round"},
            "strategy .* one of mod, div; received 'round'",
        ),
        ({"max_norm": 0.0}, "max_norm must be None or a positive number; received 0.0"),
        ({"max_norm": float("nan")}, "positive number; received nan"),
        ({"max_norm": "x"}, "positive number; received 'x'"),
        ({"aggregate": "yes"}, "aggregate must be True, False or None; received 'yes'"),
    ],
)
def test_options_that_do_not_exist(option, words):
    with pytest.raises(ValueError, match=words):
        lookup(shards(4), IDS, None, **option)


def test_a_counter_of_another_type():
    with raises(TypeError, "LookupBytesCounter()", "received 5"):
        lookup(shards(4), IDS, None, counter=5)


def test_ids_of_another_kind():
    with raises(TypeError, "tf.RaggedTensor"):
        lookup(shards(4), tf.constant([[1]]), None)
    with raises(TypeError, "received float32"):
        lookup(shards(4), tf.cast(IDS, tf.float32), None)
    with raises(ValueError, "matrix"):
        lookup(shards(4), tf.sparse.from_dense([1, 2]), None)
    with raises(TypeError, "sp_ids", "SparseTensor"):
        lookup(shards(4), IDS, tf.ones([2, 2]))
    with raises(TypeError, "received int32"):
        lookup(shards(4), IDS, IDS)


def test_weights_of_another_shape_are_refused_before_the_step():
    weights = tf.sparse.from_dense([[1.0, 1.0]])
    with raises(ValueError, "weight", "sp_ids"):
        lookup(shards(4), IDS, weights)
    with raises(ValueError, "table words"):
        tf.function(lookup).get_concrete_function(shards(4), IDS, weights)


@pytest.fixture(params=["eager", pytest.param("traced", marks=pytest.mark.not_in_gate)])
def call(request):
    """A lookup of ids and weights that are unknown until the step runs."""

    def look_up(ids, weights):
        return lookup(shards_of_table, ids, weights)

    shards_of_table = shards(2, 2)
    if request.param == "eager":
        return look_up
    return tf.function(
        look_up,
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.SparseTensorSpec([None, None], tf.float32),
        ],
    )


def sparse(places, values, dtype):
    return tf.SparseTensor(places, tf.constant(values, dtype), [2, 2])


PLACES = [[0, 0], [1, 0]]


@pytest.mark.not_in_gate
@pytest.mark.parametrize(
    ("ids", "bad"), [([0, 4], 4), ([-1, 3], -1), ([3, 2**40], 2**40)]
)
def test_ids_out_of_range(call, ids, bad):
    words = "table words must be from 0 to 3"
    with pytest.raises(InvalidArgument, match=words) as raised:
        call(sparse(PLACES, ids, tf.int64), sparse(PLACES, [1, 1], tf.float32))
    assert str(bad) in str(raised.value)


def test_ids_out_of_order(call):
    places = PLACES[::-1]
    with raises(InvalidArgument, "tf.sparse.reorder"):
        call(sparse(places, [1, 2], tf.int64), sparse(places, [1, 1], tf.float32))


@pytest.mark.not_in_gate
@pytest.mark.parametrize(
    "places", [[[0, 1], [1, 0]], [[0, 0], [0, 1], [1, 0]]], ids=["place", "number"]
)
def test_weights_of_other_ids(call, places):
    weights = sparse(places, np.ones(len(places)), tf.float32)
    with raises((InvalidArgument, ValueError), "one weight per id"):
        call(sparse(PLACES, [1, 2], tf.int64), weights)


def test_ragged_weights_of_other_ids():
    ids = tf.ragged.constant([[1], [2, 3]])
    weights = tf.ragged.constant([[1.0, 1.0], [1.0]])
    places = r"an id at \[row, column\] \[\[1 0\]\] and its weight at \[\[0 1\]\]$"
    with pytest.raises(InvalidArgument, match=places):
        lookup(shards(4), ids, weights)
    table = shards(4)
    specs = [tf.RaggedTensorSpec([None, None], t) for t in (tf.int32, tf.float32)]
    look_up = tf.function(lambda *bags: lookup(table, *bags), specs)
    with raises(InvalidArgument, "received] [3] [ids and] [2]"):
        look_up(ids, tf.ragged.constant([[1.0], [1.0]]))


def test_an_error_outside_of_a_step_says_as_much_as_one_in_it():
    words = "^ids of the table words must be from 0 to 3; received, among others, .4.$"
    with pytest.raises(InvalidArgument, match=words):
        lookup(shards(4), tf.sparse.from_dense([[4]]), None)


LAYERS = [tfdist.embedding.Embedding, tfdist.embedding.EmbeddingBag]


@pytest.mark.parametrize("layer", LAYERS)
def test_ids_of_a_layer_are_numbers(layer):
    words = "table .*embedding.* must be integers; received string.*StringLookup"
    with pytest.raises(TypeError, match=words):
        layer(4, 2)(tf.constant([["a"]]))


@pytest.mark.parametrize("layer", LAYERS)
def test_ids_of_a_layer_are_whole(layer):
    table = layer(4, 2)
    with raises(InvalidArgument, "whole", "[1.5]"):
        table(np.array([[1.5, 2.0]]))
    ids = [[1, 2]]
    expected = table(np.array(ids))
    for dtype in ("float32", "float64", "uint8", "int16", "uint64"):
        np.testing.assert_array_equal(table(np.array(ids, dtype)), expected)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_partitioner_of_another_type(layer):
    words = "partitioner must be None or a function.*received 3"
    with pytest.raises(TypeError, match=words):
        layer(4, 2, partitioner=3)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (
            {"padding": None},
            "padding must be .* whole number such as -1; received None",
        ),
        ({"padding": 0.5}, "received 0.5"),
        ({"max_norm": "x"}, "max_norm must be None or a positive number; received 'x'"),
        ({"aggregate": "yes"}, "aggregate must be True, False or None; received 'yes'"),
    ],
)
def test_options_of_a_bag_that_do_not_exist(option, words):
    with pytest.raises(ValueError, match=words):
        tfdist.embedding.EmbeddingBag(4, 2, **option)
