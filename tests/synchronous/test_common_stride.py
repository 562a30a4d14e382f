"""How many steps synchronous workers run in one call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.synchronous.fit.stride import (
    LONGEST_CALL,
    MOST_STEPS,
    CommonStride,
    size_for,
)


class Worker:
    """A worker whose steps take so many seconds, and each call half a millisecond more."""

    def __init__(self, seconds, slowest=None):
        self.seconds = seconds
        self.now = 0.0
        self.asked = []
        self.stride = CommonStride(slowest or self.ask, lambda: self.now)

    def ask(self, mine):
        self.asked.append(mine)
        return mine

    def epoch(self, steps):
        """The sizes of the calls of an epoch."""
        self.stride.start()
        sizes = []
        while steps:
            sizes.append(min(self.stride.steps(), steps))
            steps -= sizes[-1]
            self.now += sizes[-1] * self.seconds + 0.0005
        return sizes


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.0005, 100), (0.005, 30), (0.1, 1), (2.0, 1)]
)
def test_a_call_takes_a_fraction_of_a_second(seconds, size):
    assert Worker(seconds).epoch(2000)[-2] == pytest.approx(size, abs=1)


def test_the_first_calls_have_one_step():
    sizes = Worker(0.001).epoch(1000)
    assert sizes[:11] == [1] * 11
    assert sizes[11] > 10


def test_it_stops_asking_and_asks_again_in_each_epoch():
    worker = Worker(0.001)
    worker.epoch(3000)
    asked = len(worker.asked)
    assert asked <= 3
    worker.epoch(3000)
    assert len(worker.asked) == asked + 1


def test_all_take_the_pace_of_the_slowest():
    fast = Worker(0.0001, slowest=lambda mine: 50_000)
    assert fast.epoch(1000)[-2] == size_for(0.05) == 3


@given(st.floats(1e-6, 100.0))
def test_no_call_is_too_long(seconds):
    size = size_for(seconds)
    assert 1 <= size <= MOST_STEPS
    assert size == 1 or size * seconds <= LONGEST_CALL * 1.0001


@given(st.lists(st.integers(1, 500), max_size=5), st.floats(1e-4, 0.2))
def test_each_step_runs_once(epochs, seconds):
    worker = Worker(seconds)
    for steps in epochs:
        assert sum(worker.epoch(steps)) == steps
