"""Ordinary pipelines of TFRecord files that the chief reads, or reads at times."""

import logging
import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import counting
from record_files import (
    ONCE,
    SAMPLES,
    STEPS,
    batched,
    interleaved,
    is_lease,
    numbers_in,
    off,
    parse,
    write,
)

from tfdist.data import from_files
from tfdist.parameter_server.feed import leased_batches
from tfdist.parameter_server.feed.shared_files import SharedFiles

pytestmark = pytest.mark.parameter_server


@pytest.fixture
def paths(record_paths):
    return record_paths


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return counting(SAMPLES)


def of_python(paths):
    def same(x, y):
        return x, tf.ensure_shape(tf.numpy_function(lambda y: y, [y], y.dtype), [1])

    return tf.data.TFRecordDataset(paths).map(parse).map(same).batch(8)


def with_a_seed(paths):
    def draw(x, y):
        return x + tf.random.uniform([4], seed=1), y

    return tf.data.TFRecordDataset(paths).map(parse).map(draw).batch(8)


def of_the_chief_alone(paths):
    """A path that leads each process to a file of its own."""
    data = b"".join(Path(path).read_bytes() for path in paths)
    of_the_chief_alone.fd = os.memfd_create("records")
    os.write(of_the_chief_alone.fd, data)
    return batched([f"/proc/self/fd/{of_the_chief_alone.fd}"])


# Of what is refused for its graph, these stand for all: tests/data/test_not_auto_leased.py.
NOT_FOLLOWED = {
    of_python: "calls Python functions",
    with_a_seed: "draws with a seed",
    of_the_chief_alone: "worker 0 has not the chief's /proc/self/fd/",
}


@pytest.mark.in_gate("of_the_chief_alone")
@pytest.mark.parametrize("make", NOT_FOLLOWED, ids=lambda make: make.__name__)
def test_the_chief_reads_the_others(model, paths, dealt, caplog, make):
    with caplog.at_level(logging.WARNING, "tfdist"):
        history = model.fit(make(paths), epochs=2, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE] * 2)
    assert not any(map(is_lease, dealt))
    messages = [record.getMessage() for record in caplog.records]
    (said,) = [each for each in messages if "the chief reads" in each]
    assert NOT_FOLLOWED[make] in said


def test_short_records_are_sent(model, paths, dealt, monkeypatch):
    monkeypatch.setattr(leased_batches, "_LEAST_RECORD_BYTES", 2**20)
    model.fit(batched(paths), verbose=0)
    assert len(dealt) == STEPS
    assert not any(map(is_lease, dealt))


def test_a_program_may_make_any_number_of_pipelines(model, paths, dealt, monkeypatch):
    """Each of which the workers would have to be told, and the step with it."""
    monkeypatch.setattr(leased_batches, "_MOST_PIPELINES", 1)
    other = tf.data.TFRecordDataset(paths).map(parse).map(lambda x, y: (x + 1, y))
    of_a_source = from_files(paths).map(parse).batch(8)  # These do not count.
    for data in (of_a_source, batched(paths), batched(paths), other.batch(8)):
        model.fit(data, verbose=0)
    assert [is_lease(row) for row in dealt] == [True] * 3 * STEPS + [False] * STEPS


def test_files_that_workers_no_longer_have_are_read_by_the_chief(
    model, paths, dealt, monkeypatch
):
    """From the next epoch on, in the order that it would have had."""

    def gone(epoch, logs):
        monkeypatch.setattr(SharedFiles, "why_not", lambda *_: "gone")

    calls = keras.callbacks.LambdaCallback(on_epoch_end=gone)
    model.fit(interleaved(paths), epochs=3, callbacks=[calls], verbose=0)
    assert [is_lease(row) for row in dealt] == [True] * STEPS + [False] * 2 * STEPS
    found = [numbers_in(row, paths) for row in dealt]
    dealt.clear()
    model.fit(off(interleaved(paths)), epochs=3, verbose=0)
    assert found == [numbers_in(row, paths) for row in dealt]


def test_files_are_read_as_they_are_in_each_epoch(model, paths, make_directory, dealt):
    path = str(make_directory("changing") / "a.tfrecord")
    write(path, range(16))

    def rewrite(epoch, logs):
        write(path, range(8, 32))

    calls = keras.callbacks.LambdaCallback(on_epoch_end=rewrite)
    history = model.fit(batched([path]), epochs=2, callbacks=[calls], verbose=0).history
    assert all(map(is_lease, dealt))
    expected = np.zeros([2, SAMPLES])
    expected[0, :16] = expected[1, 8:32] = 1
    np.testing.assert_array_equal(history["seen"], expected)


def test_a_worker_that_comes_later_may_lack_the_files(strategy, paths, monkeypatch):
    files = SharedFiles(strategy)
    assert files.why_not(paths) == ""
    assert "no regular file" in files.why_not(["/dev/null"])
    assert files.why_not([f"{paths[0]}.none"]) == ""  # Its lease says so.
    monkeypatch.setattr(type(strategy.presence), "is_elastic", True)
    assert "comes later" in files.why_not(paths)
