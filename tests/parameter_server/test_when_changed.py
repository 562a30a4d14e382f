"""When a block moves: pure. And what `WhenChanged` takes."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.parameter_server.caching.decision import bound, is_due
from tfdist.parameter_server.caching.report import BlockMoves, WhenChangedReport
from tfdist.parameter_server.exchange.policies import check_exchange

positive = st.floats(1e-6, 1e6)
small = st.integers(1, 1000)


@given(positive, positive, positive, small)
def test_a_block_moves_once_changes_exceed_the_bound(own, others, limit, max_age):
    assert is_due(own, others, limit, 0, max_age) == (own + others > limit)


@given(positive, small, st.integers(0, 2000))
def test_no_value_is_older_than_the_greatest_age(limit, max_age, age):
    assert is_due(0.0, 0.0, limit, age, max_age) == (age >= max_age)


@given(positive, positive, positive, st.floats(0.01, 0.99))
def test_the_bound_shrinks_with_the_learning_rate(threshold, rate, norm, factor):
    smaller = bound(threshold, rate * factor, norm)
    assert smaller == pytest.approx(factor * bound(threshold, rate, norm))


def test_without_a_rate_any_change_is_due():
    assert is_due(1e-12, 0.0, bound(5.0, 0.0, 3.0), 0, 10)
    assert not is_due(0.0, 0.0, bound(5.0, 0.0, 3.0), 0, 10)


def test_what_is_not_a_number_moves_at_once():
    assert is_due(math.nan, 0.0, math.inf, 0, 10)
    assert is_due(tf.constant(math.nan), 0.0, math.inf, 0, 10)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1.0,), "at least 0; received -1.0"),
        ((math.nan,), "finite threshold of at least 0; received nan"),
        ((math.inf,), "finite threshold"),
        (("1",), "a threshold as a number"),
        ((True,), "a threshold as a number"),
        ((None,), "a threshold as a number"),
        ((1.0, 0), "max_age of WhenChanged must be a whole number from 1; received 0"),
        ((1.0, 2.5), "max_age of WhenChanged must be a whole number .* of type"),
        ((1.0, True), "max_age of WhenChanged must be a whole number .* of type"),
    ],
)
def test_wrong_arguments_are_told(arguments, error):
    with pytest.raises((TypeError, ValueError), match=error):
        tfdist.WhenChanged(*arguments)


def test_numbers_of_any_type_are_taken():
    assert tfdist.WhenChanged(np.float32(2), np.int64(3)) == tfdist.WhenChanged(2.0, 3)
    assert tfdist.WhenChanged(0).is_each_step
    assert not tfdist.WhenChanged(1e-9).is_each_step
    check_exchange(tfdist.WhenChanged(1))


def test_a_report_says_the_share_of_the_bytes():
    blocks = BlockMoves("kernel", 400, 10, 5), BlockMoves("bias", 40, 100, 100)
    report = WhenChangedReport(100, blocks, ("momentum",), ("table",))
    assert report.bytes_per_step == pytest.approx((400 * 15 + 40 * 200) / 100)
    assert report.share == pytest.approx(140 / 880)
    assert "100 steps moved 15.9% of the bytes" in str(report)
    assert "in each step: table" in str(report)
    assert WhenChangedReport(0).share == 0.0
