"""Data that workers read themselves: the chief sends leases, and no examples."""

import logging
import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, counting
from uses_of_data import assert_seen_once, assert_weighted_as_in_one_process

from tfdist.data import SourceError, from_files, from_source

from ..support.raising import raises

SAMPLES = 45
STEPS = 6  # Batches of 8, and one of 5.
ONCE = np.ones(SAMPLES)
WIDTH = 25_000  # Floats per example: 100 kB.


@pytest.fixture(scope="module")
def files(make_directory):
    """Arrays on a path that all tasks see; the target of an example is its number."""
    directory = make_directory("leases")
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    y = np.arange(SAMPLES, dtype="float32")[:, None]
    for name, array in {"x": x, "y": y}.items():
        np.save(directory / f"{name}.npy", array)
    return directory / "x.npy", directory / "y.npy"


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return counting(SAMPLES)


@pytest.fixture
def rows_sent(strategy, monkeypatch):
    """What the chief sends with the steps."""
    sent = []
    submit = strategy.in_flight.submit

    def note(function, argument, *args, **options):
        sent.append(argument)
        return submit(function, argument, *args, **options)

    monkeypatch.setattr(strategy.in_flight, "submit", note)
    return sent


def twice(x, y):
    return 2 * x, y


PIPELINES = {
    "batch": lambda files: from_source(files).batch(8),
    "map": lambda files: from_source(files, shuffle=True, seed=1).map(twice).batch(8),
    "whole": lambda files: (
        from_source(files, shuffle=True, block=4).batch(8).map(twice)
    ),
    "shuffle": lambda files: from_source(files).shuffle(SAMPLES).batch(8).prefetch(2),
}


@pytest.mark.in_gate("map")
@pytest.mark.feature("`tfdist.data.from_source`: workers read arrays by leases")
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_arrays(model, files, runs_on_workers, pipeline):
    data = PIPELINES[pipeline](files)
    with runs_on_workers(3 * STEPS):
        history = model.fit(data, epochs=3, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE] * 3)


@pytest.mark.in_gate
@pytest.mark.parameter_server
def test_no_example_crosses_the_chief(strategy, make_directory, rows_sent):
    path = make_directory("large") / "x.npy"
    np.save(path, np.zeros((64, WIDTH), "float32"))
    with strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    source = from_source((path, np.arange(64.0)), shuffle=True)
    model.fit(source.map(lambda x, y: (x + 1, y)).batch(8), verbose=0)
    sent = sum(len(each) for rows in rows_sent for each in rows.numpy().ravel())
    assert 0 < sent < 0.01 * 64 * WIDTH * 4


def with_python(data):
    def identity(x, y):
        return x, tf.ensure_shape(tf.py_function(lambda y: y, [y], y.dtype), [1])

    return data.map(identity).batch(8)


def with_filter(data):
    return data.filter(lambda x, y: y[0] >= 0).batch(8)


# They stand for all that is refused for its graph: tests/data/test_not_auto_leased.py.
@pytest.mark.parameter_server
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_python, "calls Python functions"),
        (with_filter, "filter comes after its source"),
    ],
)
def test_the_chief_reads_what_workers_cannot(
    model, files, caplog, runs_on_workers, change, why
):
    data = change(from_source(files))
    with caplog.at_level(logging.WARNING, "tfdist"), runs_on_workers(STEPS):
        history = model.fit(data, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE])
    messages = [record.getMessage() for record in caplog.records]
    (said,) = [each for each in messages if "the chief reads" in each]
    assert why in said
    assert "To have the workers read it, " in said


@pytest.mark.feature("Leases in `evaluate` and `predict`, and as validation data")
def test_evaluate_and_predict(model, files):
    assert_seen_once(model, from_source(files).batch(8), np.load(files[0]))


@pytest.mark.feature("Leases with `class_weight`, and with sample weights")
@pytest.mark.parametrize("kind", ["class", "sample"])
def test_weights(strategy, files, kind, caplog):
    assert_weighted_as_in_one_process(strategy, from_source(files), SAMPLES, kind)
    assert "chief reads" not in caplog.text


@pytest.mark.feature("Leases without an end, with `steps_per_epoch`")
def test_endless(model, files, runs_on_workers):
    data = from_source(files, shuffle=True, seed=1).repeat().batch(9)
    with runs_on_workers(2 * 5):
        history = model.fit(data, epochs=2, steps_per_epoch=5, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE] * 2)


@pytest.mark.feature("`tfdist.data.from_files`: workers read TFRecord files by leases")
def test_files(model, make_directory, runs_on_workers):
    directory = make_directory("records")
    paths = [directory / f"{i}.tfrecord" for i in range(3)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(path)) as file:
            for y in range(i * 15, i * 15 + 15):
                file.write(np.float32([0.1, 0.2, 0.3, 0.4, y]).tobytes())

    def parse(record):
        numbers = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [5])
        return numbers[:4], numbers[4:]

    data = from_files(paths, shuffle=True, seed=1, block=4)
    data = data.shuffle(10, seed=1).map(parse, num_parallel_calls=2).batch(8)
    with runs_on_workers(2 * STEPS):
        history = model.fit(data, epochs=2, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE] * 2)


@pytest.fixture
def own_files(tmp_path):
    """A file of arrays and one of records, which a test may spoil."""
    # TensorFlow keeps arrays below 10 MiB.
    np.save(tmp_path / "x.npy", np.zeros((400, 8000), "float32"))
    with tf.io.TFRecordWriter(str(tmp_path / "r")) as file:
        for _ in range(400):
            file.write(bytes(16))
    return tmp_path / "x.npy", tmp_path / "r"


def of_arrays(path, _):
    return from_source(path, shuffle=True).map(lambda x: (x[:4], x[:1])).batch(8)


def of_records(_, path):
    def parse(record):
        x = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [4])
        return x, x[:1]

    return from_files([path]).map(parse).batch(8)


def truncate(path):
    os.truncate(path, 1000)


@pytest.mark.parameter_server
@pytest.mark.parametrize(
    ("make", "spoil", "why"),
    [
        (of_arrays, os.unlink, "x.npy cannot be opened (No such file"),
        (of_arrays, truncate, "x.npy has 1,000 bytes, and had 12,800,128 before"),
        (of_records, os.unlink, "r cannot be opened (No such file"),
        (of_records, truncate, "no record begins where its lease says"),
    ],
)
def test_a_file_is_spoilt_within_an_epoch(strategy, own_files, make, spoil, why):
    def at_batch(batch, logs):
        if batch == 20:
            strategy.in_flight.join()
            spoil(own_files[make is of_records])

    with strategy.scope():
        model = compiled(keras.layers.Dense(1))
    spoils = keras.callbacks.LambdaCallback(on_train_batch_begin=at_batch)
    with pytest.raises(SourceError) as raised:
        model.fit(make(*own_files), callbacks=[spoils], verbose=0)
    message = str(raised.value)
    assert why in message
    assert len(message.splitlines()) == 3
    assert "a step failed on worker " in message
    unit = "byte " if make is of_records else ""
    assert f" from {unit}" in message.partition("while it read 8 ")[2]
    assert str(own_files[make is of_records]) in message


@pytest.mark.parameter_server
def test_a_file_changes_between_epochs(strategy, own_files):
    with strategy.scope():
        model = compiled(keras.layers.Dense(1))
    spoils = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: truncate(own_files[0])
    )
    with raises(SourceError, "1,000 bytes", "12,800,128"):
        model.fit(of_arrays(*own_files), epochs=2, callbacks=[spoils], verbose=0)


@pytest.mark.parameter_server
def test_a_file_that_is_written_again_and_opened_again_has_its_new_rows(
    strategy, make_directory
):
    """Workers keep the constants of what they have read, and equal sources are one."""
    path = make_directory("again") / "x.npy"
    with strategy.scope():
        model = keras.Sequential([keras.Input(()), keras.layers.Rescaling(1.0)])
    for number in (1.0, 2.0):
        np.save(path, np.full(6, number, np.float32))
        os.utime(path, ns=(0, int(number)))
        found = model.predict(from_source(path).batch(2), verbose=0)
        np.testing.assert_array_equal(found, np.full(6, number))


class Interrupted(Exception):
    pass


@pytest.mark.parameter_server
def test_backup_and_restore_begins_the_epoch_again(strategy, files, tmp_path):
    """As docs/recovery.md says: only a checkpoint resumes among the leases of an epoch."""

    def interrupt(batch, logs):
        if batch == 4:
            raise Interrupted

    def fit(*callbacks):
        with strategy.scope():
            model = counting(SAMPLES)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
        data = from_source(files).batch(8)
        history = model.fit(data, callbacks=[backup, *callbacks], verbose=0)
        return int(model.optimizer.iterations), history.history["seen"]

    interrupts = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
    with pytest.raises(Interrupted):
        fit(interrupts)
    iterations, seen = fit()
    assert iterations == 4 + STEPS
    np.testing.assert_array_equal(seen, [ONCE])


@pytest.mark.parameter_server
def test_what_a_pipeline_costs(strategy, model, files, capsys):
    """The program in docs/data.md."""
    guide = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S)
    (code,) = (block for block in blocks if "pipeline_report(" in block)
    data = from_source(files).batch(8)
    exec(code, {"strategy": strategy, "model": model, "data": data})
    assert "what would help: " in capsys.readouterr().out


def slowly(x, y):
    """Takes some milliseconds per example, in operations of TensorFlow."""
    square = tf.fill([300, 300], x[0])
    for _ in range(10):
        square = tf.linalg.matmul(square, square) * 1e-9
    return x + 0.0 * tf.math.tanh(square[0, :1]), y


@pytest.mark.parameter_server
def test_a_report_names_the_stage_that_costs_on_each_worker(strategy, model, files):
    data = from_source(files).map(twice).map(slowly).batch(4)
    model.fit(data.repeat(), steps_per_epoch=64, epochs=2, verbose=0)
    report = strategy.pipeline_report(data, batches=6)
    assert report.stages == ("reading", "map 1 (twice)", "map 2 (slowly)", "batch")
    assert report.slowest_stages == ("map 2 (slowly)",) * strategy.num_workers
    assert all(0 < share <= 1 for share in report.shares)
    assert "what would help: for map 2 (slowly): num_parallel_calls" in str(report)


@pytest.mark.parameter_server
def test_a_report_of_ordinary_files(strategy, make_directory):
    path = str(make_directory("reported") / "r")
    with tf.io.TFRecordWriter(path) as file:
        for _ in range(20):
            file.write(bytes(20_000))
    data = tf.data.TFRecordDataset([path]).map(lambda record: (record, 0)).batch(4)
    report = strategy.pipeline_report(data, batches=2, step_seconds=1e-6)
    assert report.stages == ("reading", "pipeline")
    assert report.shares == (1.0,) * strategy.num_workers


@pytest.mark.parameter_server
@pytest.mark.parametrize("change", [with_python, with_filter])
def test_there_is_no_report_of_what_the_chief_reads(strategy, files, change):
    with pytest.raises(SourceError, match="calls Python|filter comes after"):
        strategy.pipeline_report(change(from_source(files)))


@pytest.mark.parameter_server
def test_a_report_of_a_file_that_is_gone(strategy, own_files):
    data = of_arrays(*own_files)
    os.unlink(own_files[0])
    with raises(SourceError, "x.npy", "No such file"):
        strategy.pipeline_report(data, batches=1)


@pytest.mark.parameter_server
def test_a_report_of_what_a_worker_cannot_compute(strategy, files):
    def fails(x, y):
        return x, tf.debugging.check_numerics(y / 0.0, "not a number")

    with raises(SourceError, "worker 0", "not a number"):
        strategy.pipeline_report(from_source(files).map(fails).batch(8))


@pytest.mark.parameter_server
@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"batches": 0}, "batches must be at least 1; received 0"),
        ({"step_seconds": 0.0}, "step_seconds must be > 0 seconds; received 0.0"),
    ],
)
def test_a_report_of_a_wrong_number(strategy, files, numbers, why):
    with pytest.raises(ValueError, match=why):
        strategy.pipeline_report(from_source(files).batch(8), **numbers)
