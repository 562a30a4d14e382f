"""What a table that grows decides by itself: owners, first rows, who comes and who goes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.embedding.growing import hashing, initial_rows, pieces
from tfdist.embedding.growing.eviction import Known, decay_of, evictions_of

from ..support.raising import raises

INT64 = st.integers(-(2**63), 2**63 - 1)
MANY = np.arange(200_000)  # As many vocabularies number their words.


def mixed_by_hand(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@given(st.lists(INT64, min_size=1, max_size=8))
def test_ids_are_mixed_by_splitmix64_s_finalizer(ids):
    mixed = hashing.mixed(tf.constant(ids, tf.int64)).numpy().tolist()
    assert mixed == [mixed_by_hand(each % 2**64) for each in ids]
    assert len(set(mixed)) == len(set(ids))


def test_consecutive_ids_are_dealt_evenly():
    buckets = np.bincount(hashing.buckets_of(tf.constant(MANY)))
    expected = len(MANY) / pieces.BUCKETS
    assert len(buckets) == pieces.BUCKETS
    # Chi squared of 255 degrees of freedom: 400 is beyond any chance.
    assert ((buckets - expected) ** 2 / expected).sum() < 400


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 100, 255, 256])
def test_each_bucket_has_the_owner_whose_bounds_have_it(num_shards):
    bounds = [pieces.bounds_of(i, num_shards) for i in range(num_shards)]
    assert [first for first, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == pieces.BUCKETS
    ids = tf.constant(MANY[:5000])
    owners = hashing.owners_of(ids, num_shards).numpy()
    buckets = hashing.buckets_of(ids).numpy()
    first, end = np.array(bounds)[owners].T
    assert ((first <= buckets) & (buckets < end)).all()


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 100, 256])
@pytest.mark.parametrize("size", [0, 200 << 20, 1 << 40])
def test_pieces_have_each_bucket_once_and_one_ps_each(num_shards, size):
    of_size = pieces.Pieces.of_size(num_shards, size)
    found = list(of_size.bounds())
    assert len(found) == num_shards * of_size.per_shard <= max(num_shards, 32)
    assert [low for low, _ in found] == [0, *(high for _, high in found[:-1])]
    assert found[-1][1] == pieces.BUCKETS
    assert all(low < high for low, high in found)
    for shard in range(num_shards):
        first, end = pieces.bounds_of(shard, num_shards)
        bounds = [each[1:] for each in of_size.within(first, end)]
        assert bounds == [each for each in found if first <= each[0] and each[1] <= end]
    assert pieces.Pieces.named(of_size.attribute) == of_size


def test_pieces_of_a_later_version_are_refused():
    with raises(ValueError, "VARIABLE_VALUE_9"):
        pieces.Pieces.named("VARIABLE_VALUE_9")


def test_equal_strings_have_equal_ids():
    words = tf.constant(["a", "b", "a", "", "ä" * 1000])
    ids = hashing.ids_of_strings(words).numpy()
    # Written down, since files and machines of today must agree with those of tomorrow.
    assert ids[:2].tolist() == [3694432073954588132, 2572224033622389015]
    assert len(set(ids.tolist())) == 4
    assert (ids >= 0).all()


INITIALIZERS = {
    "uniform": keras.initializers.RandomUniform(-0.3, 0.1, seed=7),
    "normal": keras.initializers.RandomNormal(0.5, 0.2, seed=7),
    "truncated": keras.initializers.TruncatedNormal(-0.5, 2.0, seed=7),
    "constant": keras.initializers.Constant(1.5),
    "zeros": keras.initializers.Zeros(),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_first_rows_are_distributed_as_keras_s(name):
    rows = initial_rows.rows_by(INITIALIZERS[name], 5, "float32")
    ours = rows(tf.constant(MANY[:20_000]), 3).numpy()
    theirs = np.asarray(INITIALIZERS[name](ours.shape, "float32"))
    # Not the least and the greatest, which differ from sample to sample.
    at = [0.005, *np.linspace(0, 1, 21)[1:-1], 0.995]
    deviation = theirs.std() + 1e-6
    difference = np.quantile(ours, at) - np.quantile(theirs, at)
    assert np.abs(difference).max() < 0.05 * deviation
    if np.ptp(ours):
        assert np.abs(np.corrcoef(ours.T) - np.eye(5)).max() < 0.04


@given(st.lists(INT64, min_size=1, max_size=6, unique=True), INT64, st.integers(1, 4))
def test_a_first_row_depends_on_seed_id_and_column_alone(ids, seed, width):
    def rows(ids, width=width, seed=seed):
        by = initial_rows.rows_by(INITIALIZERS["uniform"], width, "float64")
        return by(tf.constant(ids, tf.int64), seed).numpy()

    together = rows(ids)
    np.testing.assert_array_equal(together[::-1], rows(ids[::-1]))
    np.testing.assert_array_equal(together[:1], rows(ids[:1]))
    np.testing.assert_array_equal(together, rows(ids, width + 2)[:, :width])
    assert (together != rows(ids, seed=seed ^ 1)).any()


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated"])
@pytest.mark.parametrize("number", [0, 2**64 - 1])
def test_the_least_and_the_greatest_number_give_finite_values(
    monkeypatch, name, number
):
    numbers = tf.constant([[number]], tf.uint64)
    monkeypatch.setattr(initial_rows, "numbers_of", lambda *_: numbers)
    row = initial_rows.rows_by(INITIALIZERS[name], 1, "float32")(tf.constant([1]), 0)
    assert np.isfinite(row).all()


@pytest.mark.parametrize(
    "initializer",
    ["glorot_uniform", "orthogonal", keras.initializers.Constant([1.0, 2.0])],
)
def test_an_initializer_that_needs_more_than_a_seed_is_refused(initializer):
    with raises(ValueError, "uniform", "received"):
        tfdist.embedding.DynamicEmbedding(
            2, max_rows=5, embeddings_initializer=initializer
        )


def known(**arrays):
    size = len(next(iter(arrays.values())))
    rest = {name: np.zeros(size) for name in ("age", "count", "norm")}
    return Known(**{**rest, **{name: np.array(each) for name, each in arrays.items()}})


@pytest.mark.parametrize(
    ("rule", "rows", "goes"),
    [
        (
            tfdist.embedding.EvictUnseen(hours=1),
            {"age": [0.0, 3600.0, 3601.0]},
            [0, 0, 1],
        ),
        (
            tfdist.embedding.EvictRare(2, decay=0.5),
            {"count": [0.0, 1.9, 2.0, 9.0]},
            [1, 1, 0, 0],
        ),
        (
            tfdist.embedding.EvictSmall(0.1),
            {"norm": [0.0, 0.09, 0.1, 1.0]},
            [1, 1, 0, 0],
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_rule_gives_up_what_is_beyond_its_threshold(rule, rows, goes):
    assert rule.evicts(known(**rows)).tolist() == [bool(each) for each in goes]


def test_rules_are_one_several_or_none():
    rare, small = (
        tfdist.embedding.EvictRare(2, decay=0.5),
        tfdist.embedding.EvictSmall(1.0),
    )
    assert evictions_of(None) == ()
    assert evictions_of(small) == (small,)
    assert evictions_of([rare, small]) == (rare, small)
    assert decay_of([small]) == 1.0
    assert decay_of([rare, small, rare]) == 0.25


NOT = {"nan": float("nan"), "text": "3", "none": None}


@pytest.mark.parametrize("value", [0, -1, 1.5, True, 2**63, *NOT.values()])
def test_no_count(value):
    with raises(ValueError, "2**63", "received"):
        tfdist.embedding.CountFilter(value)


@pytest.mark.parametrize("value", [0, -0.1, 1.1, *NOT.values()])
def test_no_probability(value):
    with raises(ValueError, "(0, 1]", "received"):
        tfdist.embedding.ProbabilityFilter(value)


@pytest.mark.parametrize("value", [0, -1, *NOT.values()])
def test_no_threshold(value):
    with raises(ValueError, "hours", "received"):
        tfdist.embedding.EvictUnseen(value)
    with raises(ValueError, "count", "received"):
        tfdist.embedding.EvictRare(value)
    with raises(ValueError, "decay", "received"):
        tfdist.embedding.EvictRare(2, decay=value)
    with raises(ValueError, "norm", "received"):
        tfdist.embedding.EvictSmall(value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"admission": 3}, r"CountFilter\(n\).*or None.*; received 3"),
        (
            {"admission": tfdist.embedding.CountFilter},
            r"CountFilter\(n\).*; received <class",
        ),
        (
            {"eviction": "rare"},
            r"a list of tfdist.embedding.EvictUnseen.*; received 'r",
        ),
        ({"eviction": [tfdist.embedding.EvictSmall(1.0), 2]}, r"or None; received 2"),
    ],
)
def test_no_rule(option, words):
    with pytest.raises(TypeError, match=words):
        tfdist.embedding.DynamicEmbedding(2, max_rows=5, **option)
