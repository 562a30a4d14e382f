"""How many steps travel in one message: decided by the pace, and by the callbacks."""

import itertools
from types import SimpleNamespace

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.parameter_server.fit.strides import (
    Pace,
    in_strides,
    sees_batches,
    shows_progress,
    sizes_of,
    split,
)

SIZES = sizes_of(1)


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def settled(seconds: float, workers: int = 2, pace: Pace | None = None) -> int:
    """The size of a stride after ten seconds of steps that take so long."""
    clock = Clock()
    pace = pace or Pace(workers, SIZES, clock)
    for _ in range(20):
        clock.now += 0.5
        size = pace.steps(int(clock.now * workers / seconds))
    return size


@pytest.mark.parametrize(
    ("seconds", "size"),
    [(0.0005, 100), (0.005, 20), (0.012, 10), (0.025, 5), (0.05, 1), (2.0, 1)],
)
def test_a_message_takes_a_fraction_of_a_second(seconds: float, size: int) -> None:
    assert settled(seconds) == size


def test_a_larger_size_waits_until_its_trace_pays() -> None:
    clock = Clock()
    pace = Pace(1, SIZES, clock)
    sizes = {}
    for finished in range(100, 5000, 100):
        clock.now += 0.5
        sizes[finished] = pace.steps(finished)
    assert [size for size, _ in itertools.groupby(sizes.values())] == [10, 20]
    assert sizes[2000] == 10
    assert sizes[2200] == 20


def test_the_pace_slows_down_with_the_steps() -> None:
    clock = Clock()
    pace = Pace(1, SIZES, clock)
    finished = 0
    sizes = []
    for rate in (200, 200, 200, 10, 10, 10):
        clock.now += 1
        finished += rate
        sizes.append(pace.steps(finished))
    assert sizes == [10, 10, 10, 1, 1, 1]


def test_time_between_epochs_does_not_count() -> None:
    clock = Clock()
    pace = Pace(1, SIZES, clock)
    clock.now = 1
    assert pace.steps(200) == 10
    clock.now = 1000
    pace.start(200)
    clock.now = 1001
    assert pace.steps(400) == 10


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 40))
def test_a_split_covers_all_steps(executions: int, least: int, exchange: int) -> None:
    steps = executions * least
    parts = list(split(steps, least, sizes_of(exchange)))
    assert sum(parts) == steps
    assert all(part % least == 0 for part in parts)


@given(st.integers(0, 300), st.integers(1, 7), st.sampled_from(SIZES))
def test_strides_cover_an_epoch(executions: int, each: int, size: int) -> None:
    data = SimpleNamespace(taken=0, asked=None)
    steps = ((i * each, i * each + each - 1, data) for i in range(executions))
    epoch_iterator = SimpleNamespace(num_batches=executions * each)
    following = 0
    for first, last, fed in in_strides(
        epoch_iterator, steps, lambda: size, SIZES, False
    ):
        assert not fed.is_shown
        assert first == following
        assert fed.asked == last + 1 - first
        following = last + 1
    assert following == executions * each


def test_keras_learns_how_many_batches_there_were() -> None:
    data = SimpleNamespace(taken=0, asked=None)
    epoch_iterator = SimpleNamespace(num_batches=None, _steps_seen=0)
    steps = ((i, i, data) for i in itertools.count())
    for _, _, fed in in_strides(epoch_iterator, steps, lambda: 10, SIZES, True):
        if fed.taken == 27:
            break  # Keras ends the epoch when no batch is left.
        fed.taken = min(27, fed.taken + fed.asked)
    # The number that Keras itself arrives at, step by step.
    assert epoch_iterator._steps_seen == 28


@pytest.mark.parametrize(
    ("callbacks", "verbose", "shown"),
    [
        ([], "auto", True),
        ([], 1, True),
        ([], True, True),
        ([], 0, False),
        ([], 2, False),
        ([keras.callbacks.History()], 0, False),
        ([keras.callbacks.ProgbarLogger()], 0, True),
    ],
)
def test_who_shows_progress(
    callbacks: list[object], verbose: object, shown: bool
) -> None:
    assert shows_progress(callbacks, verbose) is shown


class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        pass


class LooksTheOldWay(keras.callbacks.Callback):
    def on_batch_begin(self, batch: int, logs: object = None) -> None:
        pass


class LooksAtTests(keras.callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: object = None) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "train", "test"),
    [
        (keras.callbacks.History(), False, False),
        (keras.callbacks.ProgbarLogger(), False, False),
        (keras.callbacks.EarlyStopping(), False, False),
        (keras.callbacks.ModelCheckpoint("x.keras"), False, False),
        (keras.callbacks.ModelCheckpoint("x.keras", save_freq=5), True, False),
        (keras.callbacks.TerminateOnNaN(), True, False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False, False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True, False),
        (Looks(), True, False),
        (LooksTheOldWay(), True, False),
        (LooksAtTests(), False, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_callbacks_see_each_batch(
    callback: keras.callbacks.Callback, train: bool, test: bool
) -> None:
    assert sees_batches([callback], "train") is train
    assert sees_batches([callback], "test") is test
