"""The choice of backup workers, over any times of steps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.parameter_server.consistency.backup_choice import (
    backup_workers_for,
    expected_times,
)

SECONDS = st.floats(1e-3, 1e3)
WORKERS = st.lists(st.lists(SECONDS, min_size=1, max_size=4), min_size=1, max_size=5)


@given(WORKERS)
def test_times_are_those_of_all_combinations(seconds):
    """The expectation over workers that are independent, written out."""
    rounds = [sorted(each) for each in itertools.product(*seconds)]
    expected = np.mean(rounds, axis=0)
    np.testing.assert_allclose(expected_times(seconds), expected, rtol=1e-9)


@given(WORKERS, st.one_of(st.just(math.inf), st.floats(0.01, 1e3)))
def test_no_other_number_gains_more_per_second(seconds, noise_scale):
    backups = backup_workers_for(seconds, noise_scale)
    assert 0 <= backups < len(seconds)

    def rate(n, time):
        return (n if math.isinf(noise_scale) else 1 / (1 + noise_scale / n)) / time

    rates = [rate(n, time) for n, time in enumerate(expected_times(seconds), start=1)]
    assert rates[len(seconds) - backups - 1] == pytest.approx(max(rates))


@given(st.integers(1, 20), SECONDS)
def test_equal_workers_need_no_backup(workers, seconds):
    assert backup_workers_for([[seconds]] * workers) == 0


@given(st.integers(2, 8), st.data())
def test_much_slower_workers_are_backups(workers, data):
    slow = data.draw(st.integers(0, (workers - 1) // 2))
    times = [[100.0]] * slow + [[1.0]] * (workers - slow)
    assert backup_workers_for(times) == slow


@given(WORKERS, st.floats(0.1, 10.0))
def test_the_unit_of_time_does_not_matter(seconds, factor):
    scaled = [[factor * each for each in worker] for worker in seconds]
    rates = [n / t for n, t in enumerate(expected_times(seconds), start=1)]
    chosen = rates[len(seconds) - backup_workers_for(scaled) - 1]
    assert chosen == pytest.approx(max(rates))


def test_a_worker_that_has_not_finished_a_step_is_not_waited_for():
    assert backup_workers_for([[1.0], [], [1.0]]) == 1
    assert backup_workers_for([[], []]) == 0
    assert expected_times([[2.0], []]) == [2.0, math.inf]


def test_smaller_noise_prefers_smaller_rounds():
    seconds = [[1.0], [1.0], [1.3], [1.6]]
    assert backup_workers_for(seconds) == 0
    assert backup_workers_for(seconds, noise_scale=0.5) == 2
