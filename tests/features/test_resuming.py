"""Resuming after a restart: `checkpoint_dir`."""

import csv
import functools
import json
import logging
import os
import shutil
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import SampleCount, assert_alike, compiled, mlp

import tfdist
from tfdist.checkpoint import variables
from tfdist.checkpoint.fit_state import CheckpointMismatchError, groups_of
from tfdist.checkpoint.store import CorruptCheckpointError
from tfdist.checkpoint.variables import VariableWriter
from tfdist.data import from_source
from tfdist.parameter_server.feed.shared_files import SharedFiles

from ..support.deadline import DEADLINE
from ..support.raising import raises

pytestmark = pytest.mark.parameter_server

FIT = {"batch_size": 8, "verbose": 0}
STEPS = 8
WIDTH = 4200  # Floats of a record that a worker reads rather than the chief.


class Killed(Exception):
    """Stands in for the end of the process."""


class KilledAt(keras.callbacks.Callback):
    """Begins checkpoints at some steps, and ends `fit` at another.

    All are (epoch, batch).
    """

    def __init__(self, strategy, directory, begun, at, logged):
        super().__init__()
        self.strategy, self.directory = strategy, directory
        self.logged, self.seen = logged, []
        self.begun, self.at, self.now = begun, at, 0
        self.has_begun = False

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        now = self.now, batch
        self.seen.append(now)
        if self.has_begun:
            self.strategy.in_flight.join()  # It is written once these have finished.
        self.has_begun = now in self.begun
        self.strategy.checkpoints.every = 1e-6 if self.has_begun else 1e6
        if self.has_begun:
            self.wait_for(self.begun.index(now))
        if now == self.at:
            self.wait_for(len(self.begun))
            raise Killed

    def wait_for(self, count):
        deadline = time.monotonic() + DEADLINE
        while len(checkpoints(self.directory)) < count or is_writing():
            if time.monotonic() > deadline:
                found = [path.name for path in self.directory.rglob("*")]
                pytest.fail(
                    f"{count} checkpoints wanted; writing: {is_writing()}; {found}; "
                    f"batches seen: {self.seen[-8:]}; {self.logged()[-300:]}"
                )
            time.sleep(0.02)


def is_writing():
    return any(each.name == "checkpoint" for each in threading.enumerate())


class SeeBatches(keras.callbacks.Callback):
    def __init__(self, seen):
        super().__init__()
        self.see = seen.append

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.see((self.epoch_now, batch))


def checkpoints(directory, fit=0):
    return sorted((directory / f"fit-{fit:03d}").glob("checkpoint-*"))


def position(path):
    state = json.loads((path / "state.json").read_text())["position"]
    return state["epoch"], state["step"]


@pytest.fixture
def program(strategy, tmp_path, monkeypatch):
    """Run a function like a new program: its `fit` calls are counted from 0."""
    monkeypatch.setattr(strategy.checkpoints, "directory", tmp_path / "checkpoints")
    monkeypatch.setattr(strategy.checkpoints, "every", 1e6)

    def run(main, *args):
        strategy.fit_driver.fits = 0
        return main(*args)

    run.directory = tmp_path / "checkpoints"
    return run


@pytest.fixture
def fit(strategy, regression):
    """Trains a model anew."""

    def fit(*callbacks, epochs=1, **options):
        with strategy.scope():
            model = mlp(**options)
        options = {"epochs": epochs, "callbacks": list(callbacks), **FIT}
        return model.fit(*regression, **options)

    return fit


@pytest.fixture(autouse=True)
def news(caplog):
    """Keeps what a resumed `fit` says that is no warning."""
    caplog.set_level(logging.INFO, "tfdist")


@pytest.fixture
def killed(strategy, program, caplog):
    """Runs a program that begins checkpoints at some steps, and is killed at another."""

    def run(main, begun, at):
        kill = KilledAt(strategy, program.directory, begun, at, lambda: caplog.text)
        with pytest.raises(Killed):
            program(main, kill)
        strategy.in_flight.join()
        written = [position(path) for path in checkpoints(program.directory)]
        assert written == list(begun)

    return run


@pytest.mark.in_gate
@pytest.mark.feature("`fit` resumes in the middle of an epoch")
def test_resume_within_an_epoch(strategy, regression, program, killed):
    weights = []

    def main(*callbacks):
        with strategy.scope():
            model = mlp(optimizer="adam")
        seen = []

        def on_epoch_begin(epoch, logs):
            weights.append(model.get_weights())

        watch = keras.callbacks.LambdaCallback(on_epoch_begin=on_epoch_begin)
        history = model.fit(
            *regression,
            epochs=4,
            callbacks=[SeeBatches(seen), watch, *callbacks],
            **FIT,
        )
        return model, history, seen

    killed(main, [(1, 3)], at=(2, 6))
    weights.clear()
    model, history, seen = program(main)
    rest = [(e, s) for e in range(4) for s in range(STEPS) if (e, s) >= (1, 3)]
    assert seen == rest
    assert history.epoch == [0, 1, 2, 3]
    assert len(history.history["loss"]) == 4
    assert model.optimizer.iterations == 4 * STEPS
    assert any(np.any(each != 0) for each in weights[0])


@pytest.mark.feature("A checkpoint has every step before its position, and no other")
def test_a_checkpoint_is_a_consistent_cut(strategy, program, monkeypatch, in_rounds):
    """Of many that were written while messages of several steps were under way."""
    epochs, steps = 3, 500
    monkeypatch.setattr(strategy.checkpoints, "every", 0.05)
    monkeypatch.setattr(strategy.checkpoints, "keep", 1000)
    x = np.random.default_rng(0).normal(size=(8 * steps, 4)).astype("float32")
    with strategy.scope():
        model = mlp(optimizer="adam", metrics=[SampleCount()])
    program(lambda: model.fit(x, x[:, :1], epochs=epochs, **FIT))
    *found, last = checkpoints(program.directory)
    assert len(found) >= 3
    assert position(last) == (epochs, 0)
    each = strategy.consistency.replicas_to_aggregate if in_rounds else 1
    for path in found:
        variables.read(path, **groups_of(model))
        epoch, step = position(path)
        assert int(model.optimizer.iterations) * each == epoch * steps + step
        if not in_rounds:  # The steps of a round that has not ended have counted.
            assert int(model.get_metrics_result()["samples"]) == 8 * step


def first_number(record):
    row = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [WIDTH])[:1]
    return row, row


def shard(dataset, context, size):
    mine = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return mine.shuffle(size).batch(8)


@pytest.mark.in_gate("dataset")
@pytest.mark.feature("Each example of the epoch is used, also after resuming")
@pytest.mark.parametrize(
    "kind",
    [
        "shuffled arrays",
        "dataset",
        "leases",
        "generator",
        "function",
        "files",
        "files, read by the chief at first",
        "files, read by the chief afterwards",
    ],
)
def test_data_position(strategy, program, killed, tmp_path, monkeypatch, kind):
    size, due, kill = 16 * 8, 3, 14
    rows = np.arange(size, dtype="float32")[:, None]
    np.save(tmp_path / "rows.npy", rows)
    with tf.io.TFRecordWriter(str(tmp_path / "rows.tfrecord")) as file:
        for row in rows:
            file.write(np.repeat(row, WIDTH).tobytes())
    with strategy.scope():
        counts = tf.Variable(tf.zeros([size]))

    class Count(keras.layers.Layer):
        def call(self, x):
            counts.scatter_add(
                tf.IndexedSlices(tf.ones([tf.shape(x)[0]]), tf.cast(x[:, 0], tf.int32))
            )
            return x

    def data():
        if kind == "shuffled arrays":
            return {"x": rows, "y": rows, "batch_size": 8}
        if kind == "dataset":
            dataset = tf.data.Dataset.from_tensor_slices((rows, rows))
            return {"x": dataset.shuffle(size).batch(8)}
        if kind == "leases":
            source = from_source(tmp_path / "rows.npy", shuffle=True)
            return {"x": source.map(lambda x: (x, x)).batch(8)}
        if kind == "function":
            dataset = tf.data.Dataset.from_tensor_slices((rows, rows))
            make = strategy.distribute_datasets_from_function
            return {"x": make(lambda context: shard(dataset, context, size))}
        if kind.startswith("files"):
            dataset = tf.data.TFRecordDataset([str(tmp_path / "rows.tfrecord")])
            return {"x": dataset.shuffle(size).map(first_number).batch(8)}
        return {"x": ((rows[i : i + 8],) * 2 for i in range(0, size, 8))}

    def main(*callbacks):
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((1,)), Count(), keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.0), "mse")
        model.fit(epochs=1, callbacks=list(callbacks), verbose=0, **data())

    def lost(_, paths):
        return "" if kind.endswith(("files", reads)) else "gone"

    monkeypatch.setattr(SharedFiles, "why_not", lost)
    reads = "afterwards"
    killed(main, [(0, due)], at=(0, kill))
    reads = "at first"
    first = counts.numpy()
    assert first.sum() == kill * 8
    program(main)
    total = counts.numpy()
    assert (total - first).sum() == size - due * 8
    assert total.min() == 1
    assert (total == 2).sum() == (kill - due) * 8


@pytest.mark.feature("A stopped worker does not block checkpoints", rounds="-")
@pytest.mark.parametrize("steps_per_execution", ["1", "3"])
def test_stopped_worker(run_program, pytestconfig, tmp_path, steps_per_execution):
    """What it had is run again after a restart, though steps after it are not."""
    arguments = pytestconfig.getoption("strategy"), tmp_path, steps_per_execution
    result = run_program("stopped_worker.py", "checkpoint", *arguments)
    assert "no batch is lost" in result.stdout, result.stderr


@pytest.mark.feature("Callbacks resume: those of Keras, and plain attributes of yours")
def test_callbacks_go_on(strategy, regression, program, killed, tmp_path):
    class Mine(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs_seen = []

        def on_epoch_end(self, epoch, logs=None):
            self.epochs_seen.append(epoch)

    def main(*callbacks):
        with strategy.scope():
            # Of the best weights that `stop` holds, one is a NumPy scalar.
            layers = keras.layers.Normalization(), keras.layers.Dense(1)
            model = compiled(*layers, optimizer=keras.optimizers.SGD(0.08))
        mine = Mine()
        stop = keras.callbacks.EarlyStopping(
            "loss", patience=3, min_delta=1e9, restore_best_weights=True
        )
        reduce = keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.5, patience=1, min_delta=1e9
        )
        best = keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras",
            "loss",
            save_best_only=True,
            initial_value_threshold=-1,
        )
        log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
        callbacks = [mine, stop, reduce, best, log, *callbacks]
        history = model.fit(*regression, epochs=9, callbacks=callbacks, **FIT)
        return history, mine, stop, best

    killed(main, [(2, 0)], at=(2, 4))
    history, mine, stop, best = program(main)
    # Patience counts the epochs of before, and so does the learning rate.
    assert history.epoch == mine.epochs_seen == [0, 1, 2, 3]
    assert stop.stopped_epoch == 3
    assert stop.best == history.history["loss"][0]
    assert history.history["learning_rate"] == pytest.approx([0.08, 0.08, 0.04, 0.02])
    assert not (tmp_path / "best.keras").exists()
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["epoch"]) for row in rows][0] == 0
    assert {float(row["epoch"]) for row in rows} == {0, 1, 2, 3}


@pytest.mark.feature("A finished `fit` returns at once, or continues for more epochs")
def test_fit_that_had_ended(strategy, regression, program, runs_on_workers, caplog):
    def main(epochs):
        with strategy.scope():
            model = mlp(optimizer="adam")
        first = model.fit(*regression, epochs=2, **FIT)
        second = model.fit(*regression, epochs=epochs, **FIT)
        return model, first, second

    with runs_on_workers(3 * STEPS):
        model, _, _ = program(main, 1)
    weights = model.get_weights()
    assert [len(checkpoints(program.directory, fit)) for fit in (0, 1)] == [1, 1]
    with runs_on_workers(0):
        model, first, second = program(main, 1)
    assert (first.epoch, second.epoch) == ([0, 1], [0])
    assert "nothing left to do" in caplog.text
    assert "is the end of 1 epochs; epochs requested: 1" in caplog.text
    assert_alike(weights, model.get_weights())
    with runs_on_workers(2 * STEPS):
        model, _, second = program(main, 3)
    assert second.epoch == [0, 1, 2]
    assert model.optimizer.iterations == 5 * STEPS


@pytest.mark.feature("`steps_per_epoch` of a dataset resumes at its position")
def test_steps_per_epoch(strategy, program, killed):
    steps, due, kill = 16, 2, 14
    size = steps * 8
    rows = np.arange(2 * size, dtype="float32")[:, None]
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(8)

    def main(*callbacks):
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Rows()])
        logs = []
        see = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, log: logs.append(log["rows"])
        )
        model.fit(
            dataset,
            epochs=2,
            steps_per_epoch=steps,
            callbacks=[see, *callbacks],
            verbose=0,
        )
        return logs

    killed(main, [(1, due)], at=(1, kill))
    [last] = program(main)
    # Steps that were run again count twice; those of the first half would be less.
    assert rows[size:].sum() <= last <= rows[size:].sum() * 2


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("other_batches", "has 8 batches, and had 16"),
        ("arrays", "has 8 batches, and had 16"),
        ("written_again", "has files that were written again"),
        ("same", None),
    ],
)
def test_data_that_is_another_within_an_epoch_is_told(
    strategy, program, killed, make_directory, caplog, kind, told
):
    path = make_directory("resumed") / "x.npy"
    np.save(path, np.zeros((128, 1), np.float32))

    def main(*callbacks, batch=8, rate=0.01):
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(rate), "mse")
        data = {"x": from_source((path, path)).batch(batch)}
        if kind == "arrays":
            data = {"x": np.load(path), "y": np.load(path), "batch_size": batch}
        model.fit(**data, epochs=2, callbacks=list(callbacks), verbose=0)

    killed(main, [(1, 3)], at=(1, 6))
    if kind == "written_again":
        os.utime(path, ns=(0, 1))
    caplog.clear()
    is_other = kind in ("other_batches", "arrays")
    options = {"batch": 16, "rate": 0.5} if is_other else {}
    program(functools.partial(main, **options))
    found = [each for each in caplog.messages if "the rest of this epoch" in each]
    assert [told in each for each in found] == ([True] if told else [])
    rate = "the learning rate is 0.01, as in the checkpoint, and not the script's 0.5,"
    assert (rate in caplog.text) == is_other


class Rows(keras.metrics.Metric):
    """The sum of the targets."""

    def __init__(self):
        super().__init__(name="rows")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y))

    def result(self):
        return self.total + 0


@pytest.mark.in_gate("truncated")
@pytest.mark.feature("A corrupt checkpoint is skipped, and the previous one is used")
@pytest.mark.parametrize("damage", ["truncated", "other bytes"])
def test_corrupt_checkpoint(program, killed, fit, caplog, damage):
    main = functools.partial(fit, epochs=3)
    killed(main, [(0, 2), (1, 2)], at=(2, 6))
    before, newest = checkpoints(program.directory)
    file = max(newest.glob("variables.data*"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    middle = len(content) // 2
    if damage == "truncated":
        file.write_bytes(content[:middle])
    else:
        flipped = bytes([content[middle] ^ 1])
        file.write_bytes(content[:middle] + flipped + content[middle + 1 :])
        # As in a file too large for a checksum of ours: TensorFlow finds it.
        manifest = json.loads((newest / "manifest.json").read_text())
        for _, entry in manifest["files"]:
            entry["crc32"] = None
        (newest / "manifest.json").write_text(json.dumps(manifest))
    assert program(main).epoch == [0, 1, 2]
    assert f"skipping the checkpoint {newest}" in caplog.text
    assert f"fit continues from {before}" in caplog.text
    assert not newest.exists()


@pytest.mark.feature(
    "Checkpoints of which none is fully readable",
    "no",
    "some variables may be restored already",
)
@pytest.mark.parametrize("has_begun", [True, False])
def test_every_checkpoint_is_corrupt(program, fit, monkeypatch, has_begun):
    def read(path, **groups):
        raise tf.errors.DataLossError(None, None, "Checksum does not match")

    program(fit)
    (newest,) = checkpoints(program.directory)
    if has_begun:
        monkeypatch.setattr("tfdist.checkpoint.variables.read", read)
    else:
        for file in newest.glob("variables.data*"):
            file.write_bytes(b"")
    so_far = ", and some variables have been restored" if has_begun else ""
    with pytest.raises(
        CorruptCheckpointError,
        match=f"can be read to its end{so_far}: remove that directory",
    ):
        program(fit)
    assert has_begun or newest.exists()


@pytest.mark.feature("A full disk causes a warning, and training continues")
@pytest.mark.parametrize("seen_by", ["chief", "ps"])
def test_full_disk(program, fit, caplog, monkeypatch, runs_on_workers, seen_by):
    def write(writer, path):
        raise tf.errors.ResourceExhaustedError(
            None, None, f"{path}; No space left on device"
        )

    def fill_disk():
        if seen_by == "ps":
            monkeypatch.setattr(VariableWriter, "__call__", write)
        else:
            full = shutil.disk_usage(program.directory)._replace(free=1000)
            monkeypatch.setattr(shutil, "disk_usage", lambda path: full)

    def main():
        fit()
        fill_disk()
        with runs_on_workers(STEPS):
            fit()

    program(main)
    assert "No space left on device" in caplog.text
    assert "Checkpoints that are there stay" in caplog.text
    assert len(checkpoints(program.directory, 0)) == 1
    assert list((program.directory / "fit-001").iterdir()) == [
        program.directory / "fit-001" / ".lock"
    ]


@pytest.mark.feature(
    "The checkpoint of another model",
    "no",
    "the error names the first variable that differs",
)
def test_another_model(program, fit):
    program(fit)
    with raises(CheckpointMismatchError, "in place of", "kernel"):
        program(functools.partial(fit, units=2))


@pytest.mark.feature("Checkpoints of `fit` restore into other shards")
def test_other_shards(strategy, regression, program):
    def main(shards):
        partitioner = tfdist.FixedShardsPartitioner(shards)
        with strategy.scope(), tfdist.partition_variables(partitioner):
            model = mlp(optimizer="adam")
        model.fit(*regression, epochs=1, **FIT)
        return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]

    written, read = program(main, 2), program(main, 4)
    assert_alike(written, read)


def growing(strategy, **options):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(4, seed=0, name="table", **options)
        inputs = keras.Input((), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(table(inputs)))
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return table, model


new_rows = pytest.mark.sets_new_rows(r"embeddings|^(while/input_)?\d+$")


@new_rows
@pytest.mark.feature("`fit` resumes tables that grow, with room for more rows or fewer")
def test_room_of_a_table_that_grows(strategy, program, monkeypatch):
    ids = np.arange(64) * 2**50
    free = shutil.disk_usage(program.directory.parent)._replace(free=2**22)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)

    def main(max_rows):
        table, model = growing(strategy, max_rows=max_rows)
        model.fit(ids, np.ones(64), epochs=1, **FIT)
        slot = np.array(model.optimizer._accumulators[0])
        in_order = np.concatenate([some for some, _ in table.export()])
        return table.lookup(ids), slot[np.argsort(in_order)]

    # The disk has no room for all rows that are reserved.
    written = program(main, 1_000_000)
    assert len(checkpoints(program.directory)) == 1
    for before, now in zip(written, program(main, 100), strict=True):
        assert before.shape == (64, 4)
        np.testing.assert_array_equal(now, before)
    with raises(CheckpointMismatchError, "room", "max_rows"):
        program(main, 10)


@new_rows
def test_an_export_after_a_restart_lacks_rows_given_up_before(
    strategy, program, killed, tmp_path
):
    stays, goes = np.arange(8), np.arange(100, 108)
    x = np.concatenate([goes, np.tile(stays, 3 * STEPS - 1)])
    data = tf.data.Dataset.from_tensor_slices((x, np.ones(len(x)))).batch(8)

    def main(*callbacks):
        table, model = growing(
            strategy, max_rows=100, eviction=tfdist.embedding.EvictRare(3.0)
        )
        own = [
            tfdist.embedding.DeltaExport(tmp_path / "exports"),
            tfdist.embedding.EvictRows(),
        ]
        options = {"epochs": 3, "steps_per_epoch": STEPS, "verbose": 0}
        model.fit(data, callbacks=[*own, *callbacks], **options)
        return table

    killed(main, [(1, 3)], at=(1, 6))
    (tmp_path / "exports" / ".unfinished").mkdir()
    (first,) = tfdist.embedding.read_export(tmp_path / "exports").values()
    assert set(first[0]) == {*stays, *goes}
    table = program(main)
    ids, rows = tfdist.embedding.read_export(tmp_path / "exports")[table.path]
    assert set(ids) == set(stays)
    np.testing.assert_array_equal(rows, table.lookup(ids))
    assert not list((tmp_path / "exports").glob(".*"))
