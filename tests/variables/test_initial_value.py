"""The initial values of a variable's shards, and the cost of computing them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.placement.partition import Partition
from tfdist.variables import initial_value
from tfdist.variables.shard_layout import DIV, layout_of

SHAPE = (70, 3)
ROWS_A_PIECE = 10
HALVES = layout_of(Partition.of_sizes(0, sizes=(40, 30), ps=(0, 1)), DIV)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(initial_value, "_PIECE_BYTES", ROWS_A_PIECE * 3 * 4)


def created(initializer, layout=HALVES, value=None) -> np.ndarray:
    """The whole value of a variable that is created in these shards."""
    shards = []
    for each in initial_value.of_shards(value, initializer, SHAPE, "float32", layout):
        shard = tf.Variable(each.initial())
        each.assign_pieces(shard)
        shards.append(shard.numpy())
    return np.concatenate(shards, layout.partition.axis)


@pytest.mark.parametrize(
    ("initializer", "number"),
    [
        (keras.initializers.Zeros(), 0),
        (keras.initializers.Ones(), 1),
        (keras.initializers.Constant(0.1), np.float32(0.1)),
    ],
)
def test_constants(initializer, number):
    np.testing.assert_array_equal(created(initializer), np.full(SHAPE, number))


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(1.0, 2.0, seed=5),
        keras.initializers.RandomNormal(1.5, 0.1, seed=5),
        keras.initializers.TruncatedNormal(1.5, 0.1, seed=5),
        keras.initializers.RandomUniform(1.0, 2.0),
    ],
)
def test_random_values_are_all_there_and_none_comes_twice(initializer):
    check_random(created(initializer))


def test_a_seed_generator_goes_on():
    seeds = keras.random.SeedGenerator(5)
    check_random(created(keras.initializers.RandomUniform(1.0, 2.0, seed=seeds)))


def check_random(value):
    assert value.shape == SHAPE
    assert (np.abs(value - 1.5) <= 0.5).all()
    assert 1.4 < value.mean() < 1.6
    assert len(np.unique(value, axis=0)) == SHAPE[0]


def test_a_seed_makes_the_same_values_again():
    first, again, other = (
        created(keras.initializers.RandomUniform(seed=seed)) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.isin(first, other).any(), "the next seed shares pieces with this one"


def test_the_first_piece_is_as_keras_makes_it():
    initializer = keras.initializers.RandomUniform(seed=5)
    wanted = initializer((ROWS_A_PIECE, 3), "float32")
    np.testing.assert_array_equal(created(initializer)[:ROWS_A_PIECE], wanted)


def test_a_random_shard_takes_the_memory_of_a_piece_at_a_time(monkeypatch):
    shapes = []

    class Recorded(keras.initializers.RandomUniform):
        def __call__(self, shape, dtype=None):
            shapes.append(shape)
            return super().__call__(shape, dtype)

    monkeypatch.setattr(initial_value, "_RANDOM", (Recorded,))
    created(Recorded(seed=5))
    assert shapes == [(ROWS_A_PIECE, 3)] * 7


def test_columns_of_few_rows_are_one_piece():
    columns = layout_of(Partition.of_sizes(1, sizes=(2, 1), ps=(0, 1)), DIV)
    value = created(keras.initializers.RandomUniform(1.0, 2.0, seed=5), columns)
    assert value.shape == SHAPE
    assert len(np.unique(value)) == value.size


def test_what_depends_on_the_whole_is_made_whole():
    glorot = keras.initializers.GlorotUniform(seed=5)
    value = created(glorot, value=lambda: glorot(SHAPE, "float32"))
    np.testing.assert_array_equal(value, glorot(SHAPE, "float32"))
    array = np.arange(210, dtype="float32").reshape(SHAPE)
    np.testing.assert_array_equal(created(None, value=array), array)
