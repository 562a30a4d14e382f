import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.planning.suggest import suggest_cluster

amounts = st.floats(1e3, 1e10)


def test_the_formula():
    # 1 GB each way at 1 GB/s, around 2 s of computing: 4 s a step. 8 workers ask for
    # 2 GB/s each way.
    suggestion = suggest_cluster(2e9, 2.0, 8, bandwidth=1e9)
    assert suggestion.step_seconds == 4.0
    assert suggestion.steps_per_second == pytest.approx(2.0, rel=0.1)
    assert suggestion.bound == "the steps themselves"
    assert suggestion.num_ps == 3  # 2 GB/s at 80% of 1 GB/s
    assert suggestion.busy == pytest.approx(2 / 3)
    assert suggestion.rule_of_thumb == 4
    assert suggestion.rule_busy == pytest.approx(0.5)
    assert not suggestion.rule_is_wrong


@pytest.mark.slow
def test_the_chief_is_the_limit_of_many_workers():
    suggestion = suggest_cluster(1e6, 0.5, 1000)
    assert suggestion.bound == "the chief's interpreter"
    assert "500 steps/s, limited by the chief's interpreter" in str(suggestion)
    lighter = suggest_cluster(1e6, 0.5, 1000, chief_seconds=1e-4)
    assert lighter.steps_per_second == pytest.approx(1970, rel=0.1)


@given(amounts, st.floats(0, 100), st.integers(1, 500), st.floats(1e6, 1e11))
def test_the_ps_keep_up_and_one_less_would_not(moved, seconds, workers, bandwidth):
    suggestion = suggest_cluster(moved, seconds, workers, bandwidth=bandwidth)
    assert suggestion.busy <= 0.8 + 1e-9
    if suggestion.num_ps > 1:
        fewer = suggestion.num_ps - 1
        assert suggestion.busy * suggestion.num_ps / fewer > 0.8
    assert suggestion.num_ps <= math.ceil(workers / 1.6)


def test_just_enough_is_enough():
    suggestion = suggest_cluster(1000.0, 0.0, 8, bandwidth=14707233.0)
    assert suggestion.num_ps == 5
    assert suggestion.busy == pytest.approx(0.8)


def test_the_rule_is_wrong_where_a_step_is_all_network():
    suggestion = suggest_cluster(1e9, 0.0, 48)
    assert suggestion.num_ps == 30
    assert suggestion.rule_of_thumb == 16
    assert suggestion.rule_is_wrong
    assert "is wrong: their links would be asked for 1.5 times" in str(suggestion)


def test_the_rule_is_wrong_where_a_step_is_all_computing():
    suggestion = suggest_cluster(1e6, 1.0, 48)
    assert suggestion.num_ps == 1
    assert suggestion.rule_is_wrong
    assert "1 do, and more only idle" in str(suggestion)


def test_the_rule_is_wrong_where_it_does_not_hold_the_model():
    suggestion = suggest_cluster(1e6, 1.0, 6, model_bytes=100e9, ps_memory=16e9)
    assert suggestion.num_ps == suggestion.memory_ps == 7
    assert "do not hold the variables, for which it takes 7" in str(suggestion)


def test_the_rule_is_wrong_where_requests_queue_up():
    suggestion = suggest_cluster(100e6, 0, 8)
    assert (suggestion.num_ps, suggestion.rule_of_thumb) == (5, 4)
    assert suggestion.rule_busy == pytest.approx(1)
    assert suggestion.rule_is_wrong
    assert "is wrong: their links would be 100% busy, above 80%" in str(suggestion)
    assert not suggest_cluster(100e6, 0, 8, utilization=1.0).rule_is_wrong


def test_the_rule_is_right_in_between():
    suggestion = suggest_cluster(2e9, 2.0, 8, bandwidth=1e9)
    assert "says 4, which does as well (50% busy)" in str(suggestion)


def test_a_hot_ps_costs_ps():
    even = suggest_cluster(2e9, 2.0, 8, bandwidth=1e9)
    hot = suggest_cluster(2e9, 2.0, 8, bandwidth=1e9, imbalance=2.0)
    assert hot.num_ps == 5
    assert hot.busy * hot.num_ps == pytest.approx(2 * even.busy * even.num_ps)


def test_faster_links_of_the_ps_save_ps():
    kwargs = {"bandwidth": 1e9, "utilization": 1.0}
    assert suggest_cluster(2e9, 2.0, 8, **kwargs).num_ps == 2
    assert suggest_cluster(2e9, 2.0, 8, ps_bandwidth=10e9, **kwargs).num_ps == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bytes_per_step": -1}, "bytes_per_step is at least 0"),
        ({"compute_seconds": math.nan}, "compute_seconds is at least 0"),
        ({"num_workers": 0}, "num_workers of suggest_cluster is a whole number from 1"),
        ({"num_workers": 10**8}, "from 1 to 100,000 workers; received 100000000"),
        ({"bytes_per_step": "x"}, "bytes_per_step is a number; received 'x'"),
        ({"ps_memory": None}, "ps_memory is a number; received None"),
        ({"bandwidth": True}, "bandwidth is a number; received True"),
        ({"imbalance": 0.5}, "imbalance is at least 1"),
        ({"bandwidth": 0}, "bandwidth is above 0"),
        ({"ps_memory": 0}, "ps_memory is above 0"),
        ({"utilization": 0.0}, "utilization is above 0"),
        ({"utilization": 1.1}, "utilization is at most 1"),
        ({"bytes_per_step": 0, "compute_seconds": 0}, "or compute_seconds is above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    arguments = {"bytes_per_step": 1e6, "compute_seconds": 1, "num_workers": 2}
    with pytest.raises(ValueError, match=message):
        suggest_cluster(**{**arguments, **kwargs})


@pytest.mark.parametrize("workers", [2.5, True, "8"])
def test_workers_are_counted(workers):
    with pytest.raises(TypeError, match="num_workers of suggest_cluster is a whole"):
        suggest_cluster(1e6, 1, workers)


@pytest.mark.parametrize(
    ("seconds", "bandwidth"), [(0, 125e6), (1e-12, 125e6), (0.5, 125e6), (0.5, 1e-3)]
)
def test_steps_that_mostly_move_bytes_are_limited_by_the_links(seconds, bandwidth):
    suggestion = suggest_cluster(205e6, seconds, 8, bandwidth=bandwidth)
    assert "limited by the links; " in str(suggestion)
