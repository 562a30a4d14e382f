"""How many steps travel in one message: decided by the pace, and by the callbacks."""

import itertools
from types import SimpleNamespace

import keras
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfdist import _tf
from tfdist.keras.strides import (
    in_strides,
    sees_batches,
    shows_progress,
    split,
    telling_the_ends,
)
from tfdist.parameter_server.fit.pace import Pace, sizes_of
from tfdist.parameter_server.step_graph.unrolling import (
    LARGEST_CHUNK,
    LONGEST_CHUNK,
    copies,
)

SIZES = sizes_of(1)


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def settled(seconds: float, exchange: int = 1, workers: int = 2) -> int:
    """The size of a stride after many steps that take so long."""
    clock = Clock()
    pace = Pace(workers, exchange, clock)
    for _ in range(20):
        clock.now += max(0.5, 10 * exchange * seconds)
        size = pace.steps(int(clock.now * workers / seconds))
    return size


@pytest.mark.parametrize(
    ("seconds", "size"),
    [(0.0005, 100), (0.005, 20), (0.012, 10), (0.025, 5), (0.05, 1), (2.0, 1)],
)
def test_a_message_takes_a_fraction_of_a_second(seconds: float, size: int) -> None:
    assert settled(seconds) == size


@pytest.mark.parametrize(
    ("exchange", "seconds", "size"),
    [
        (5, 0.043, 5),
        (10, 0.043, 10),
        (50, 0.043, 50),
        (7, 0.0005, 105),
        (50, 0.0005, 100),
        (200, 0.0005, 200),
        # A checkpoint would not wait for as many.
        (50, 0.2, 25),
        (10, 3.0, 1),
    ],
)
def test_an_exchange_sets_the_size(exchange: int, seconds: float, size: int) -> None:
    assert Pace(2, exchange).steps(0) == exchange
    assert settled(seconds, exchange) == size


@given(st.integers(1, 300))
def test_sizes_are_whole_exchanges_or_parts_of_one(exchange: int) -> None:
    sizes = sizes_of(exchange)
    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))
    assert exchange in sizes
    assert all(size % exchange == 0 for size in sizes if size > exchange)


def test_the_trace_of_a_size_does_not_make_it_smaller() -> None:
    clock = Clock()
    pace = Pace(2, 10, clock)
    finished = 0
    for seconds in (12, 6, 3):  # The trace, and each worker's preparation of it.
        clock.now += seconds
        finished += 10
        assert pace.steps(finished) == 10


@given(st.integers(1, 10**6), st.integers(1, 300))
def test_copies_are_bounded(operations: int, steps_each: int) -> None:
    many = copies(operations, steps_each)
    assert many == 1 or many * operations <= LARGEST_CHUNK
    assert many == 1 or many * steps_each <= LONGEST_CHUNK
    assert many >= 1


@pytest.mark.parametrize(
    ("operations", "many"), [(100, 20), (400, 12), (5_000, 1), (15_000, 1)]
)
def test_a_larger_graph_has_fewer_copies(operations: int, many: int) -> None:
    assert copies(operations) == many


def test_a_larger_size_waits_until_its_trace_pays() -> None:
    clock = Clock()
    pace = Pace(1, 1, clock)
    sizes = {}
    for finished in range(100, 5000, 100):
        clock.now += 0.5
        sizes[finished] = pace.steps(finished)
    assert [size for size, _ in itertools.groupby(sizes.values())] == [10, 20]
    assert sizes[2000] == 10
    assert sizes[2200] == 20


def test_the_pace_slows_down_with_the_steps() -> None:
    clock = Clock()
    pace = Pace(1, 1, clock)
    finished = 0
    sizes = []
    for rate in (200, 200, 200, 10, 10, 10):
        clock.now += 1
        finished += rate
        sizes.append(pace.steps(finished))
    assert sizes == [10, 10, 10, 1, 1, 1]


def test_time_between_epochs_does_not_count() -> None:
    clock = Clock()
    pace = Pace(1, 1, clock)
    clock.now = 1
    assert pace.steps(200) == 10
    clock.now = 1000
    pace.start(200)
    clock.now = 1001
    assert pace.steps(400) == 10


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 40))
def test_a_split_covers_all_steps(executions: int, least: int, exchange: int) -> None:
    steps = executions * least
    sizes = [each for each in sizes_of(exchange) if each >= exchange]
    parts = list(split(steps, least, sizes))
    assert sum(parts) == steps
    assert all(part % least == 0 for part in parts)


class Epochs(_tf.TFEpochIterator):
    """Keras's own enumeration of an epoch's steps; an epoch may have effects at its end."""

    def __init__(self, each, batches, steps, seen):
        self._distribute_strategy = None
        self.steps_per_execution, self.steps_per_epoch = each, steps
        self._num_batches, self._steps_seen = batches, seen
        self.data = SimpleNamespace(steps_requested=None, taken=0, is_shown=None)
        self._current_iterator = self.data if steps else None
        self.data_adapter = self
        self.has_ended = False

    def on_epoch_begin(self):
        pass

    def on_epoch_end(self):
        self.has_ended = True

    def _get_iterator(self):
        return itertools.repeat(self.data)

    def _interrupted_warning(self):
        pass

    def enumerated(self):
        for first, last, _ in self._enumerate_iterator():
            yield first, last, self.data


@given(
    each=st.integers(1, 7),
    batches=st.none() | st.integers(1, 500),
    steps=st.none() | st.integers(1, 500),
    seen=st.integers(0, 500),
    skipped=st.integers(0, 50),
    size=st.sampled_from(SIZES),
)
def test_an_epoch_ends_once_the_batches_of_its_last_stride_are_read(
    each, batches, steps, seen, skipped, size
):
    assume(batches or steps)
    seen = seen if steps else 0
    plain = list(Epochs(each, batches, steps, seen).enumerated())[skipped:]
    epochs = Epochs(each, batches, steps, seen)
    of_keras = itertools.islice(epochs.enumerated(), skipped, None)
    following = plain[0][0] if plain else 0
    for first, last, fed in in_strides(epochs, of_keras, lambda: size, SIZES, False):
        assert not fed.is_shown
        assert first == following
        assert fed.steps_requested == last + 1 - first
        assert not epochs.has_ended
        following = last + 1
    assert epochs.has_ended
    assert following == (plain[-1][1] + 1 if plain else 0)


def test_keras_learns_how_many_batches_there_were() -> None:
    epochs = Epochs(1, None, None, 0)
    of_keras = epochs.enumerated()
    for _, _, fed in in_strides(epochs, of_keras, lambda: 10, SIZES, True):
        if fed.taken == 27:
            break  # Keras ends the epoch when no batch is left.
        fed.taken = min(27, fed.taken + fed.steps_requested)
    # The number that Keras itself arrives at, step by step.
    assert epochs._steps_seen == 28


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


@given(
    each=st.integers(1, 7),
    batches=st.none() | st.integers(1, 60),
    steps=st.none() | st.integers(1, 60),
)
def test_the_first_and_the_last_execution_of_an_epoch_are_told(each, batches, steps):
    assume(batches or steps)
    epochs = Epochs(each, batches, steps, 0)
    told = [
        (data.is_first, data.is_last)
        for _, _, data in telling_the_ends(epochs, epochs.enumerated())
    ]
    first, last = zip(*told, strict=True)
    assert first == (True, *[False] * (len(told) - 1))
    others = False if batches else None
    assert last == (*[others] * (len(told) - 1), True)
