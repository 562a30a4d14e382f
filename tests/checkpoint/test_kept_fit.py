"""`fit` of a pipeline goes on from its checkpoint, as if it had not been interrupted."""

import contextlib
import logging
import re
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.checkpoint import kept_fit
from tfdist.checkpoint.fit_state import CheckpointMismatchError, announce
from tfdist.checkpoint.keeper import Keeper
from tfdist.checkpoint.kept_fit import KeptFit
from tfdist.checkpoint.store import CorruptCheckpointError
from tfdist.research.model_parallel.pipeline.kept_data import OneProcess

from ..support.deadline import DEADLINE
from ..support.raising import raises

pytestmark = pytest.mark.own_process

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
ROWS = tf.data.Dataset.from_tensor_slices
DATA = {
    "shuffled arrays": lambda: {"x": X, "y": Y, "batch_size": 8},
    "endless": lambda: {"x": ROWS((X, Y)).batch(8).repeat(), "steps_per_epoch": 3},
    "generator": lambda: {
        "x": ((X[i : i + 8], Y[i : i + 8]) for i in [0, 8, 16, 24, 32] * 3),
        "steps_per_epoch": 5,
    },
}


@pytest.fixture(scope="module", autouse=True)
def logical_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    tf.config.set_logical_device_configuration(cpu, devices)


class Watch(keras.callbacks.Callback):
    """Notes the steps, and ends `fit` at one of them once there is a checkpoint."""

    def __init__(self, at, directory, seen):
        super().__init__()
        self.at, self.directory, self.see, self.plain = at, directory, seen.append, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.plain += 1
        self.see((self.epoch_now, batch))

    def on_train_batch_end(self, batch, logs=None):
        if self.at == (self.epoch_now, batch):
            end = time.monotonic() + DEADLINE
            while not kept(self.directory):
                assert time.monotonic() < end, "no checkpoint"
                time.sleep(0.02)
            raise KeyboardInterrupt


def kept(directory):
    return sorted(Path(directory, "fit-000").glob("checkpoint-*"))


@pytest.fixture
def program(tmp_path):
    """Trains as a new process does; ends at a step, if one is given."""
    run_of = {"checkpoints": tfdist.Checkpoints(tmp_path / "kept", every=1e-6)}

    def run(data=DATA["shuffled arrays"], at=None, units=8, epochs=3, **options):
        keras.utils.set_random_seed(1)
        options = {"microbatches": 2, **run_of, **options}
        strategy = tfdist.research.PipelineStrategy(2, **options)
        with strategy.scope():
            layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        seen, history = [], None
        watch = Watch(at, tmp_path / "kept", seen)
        with contextlib.suppress(KeyboardInterrupt):
            given = {"epochs": epochs, "verbose": 0, "callbacks": [watch]}
            history = model.fit(**data(), **given)
        return model, history, seen, watch.plain

    return run


@pytest.fixture(autouse=True)
def news(caplog):
    """Keeps what a resumed `fit` says that is no warning."""
    caplog.set_level(logging.INFO, "tfdist")


@pytest.mark.parametrize(
    ("kind", "stale"), [*((kind, 0) for kind in DATA), ("endless", 1)]
)
def test_it_goes_on_at_its_step(program, caplog, kind, stale):
    options = {"max_staleness": stale}
    whole, expected, *_ = program(DATA[kind], **options, checkpoints=None)
    program(DATA[kind], at=(1, 2), **options)
    model, history, seen, plain = program(DATA[kind], **options)
    assert (0, 1) <= seen[0] <= (1, 2)
    assert "fit continues from " in caplog.text
    assert plain > len(seen)  # Of the attributes, a number came back.
    assert model.optimizer.iterations == whole.optimizer.iterations
    assert history.epoch == [0, 1, 2]
    if stale:  # Batches pass through all stages before each checkpoint.
        return
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, 1e-5)


def test_a_fit_that_had_ended_returns_at_once_or_goes_on(program, caplog):
    first, *_ = program()
    model, history, seen, _ = program()
    assert seen == []
    assert history.epoch == [0, 1, 2]
    assert "fit has nothing left to do" in caplog.text
    for one, other in zip(model.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    _, history, seen, _ = program(epochs=4)
    assert seen == [(3, step) for step in range(5)]
    assert history.epoch == [0, 1, 2, 3]


def test_one_is_due_at_the_start_of_an_epoch_however_fast_the_steps_were(monkeypatch):
    fit = KeptFit(tfdist.Checkpoints(), None, OneProcess(), [], 2, lambda: None)
    now = [0.0]
    monkeypatch.setattr(kept_fit.time, "monotonic", lambda: now[0])
    fit.on_train_begin()
    for step in range(50):
        now[0] += 0.001
        assert not fit._is_due(step)
    now[0] += 31.0  # Callbacks and an evaluation.
    assert fit._is_due(0)


def test_another_model_is_refused(program):
    program()
    with raises(CheckpointMismatchError, "different model"):
        program(units=9)


def test_all_tasks_have_a_directory_or_none(tmp_path):
    class Others(OneProcess):
        def gather_numbers(self, numbers):
            return np.array([numbers, [0]])

    keeper = Keeper(tfdist.Checkpoints(tmp_path), Others, lambda: None)
    with (
        raises(ValueError, "TFDIST_CHECKPOINT_DIR", "all"),
        keeper.keeping(None, [], 1),
    ):
        pass


def test_what_is_torn_is_skipped(program, tmp_path, caplog):
    program()
    *others, last = kept(tmp_path / "kept")
    (last / "values.npz").write_bytes(b"torn")
    program(epochs=4)
    assert re.search(f"skipping the checkpoint {last}: values.npz", caplog.text)
    assert f"fit continues from {others[-1]}" in caplog.text
    for path in kept(tmp_path / "kept"):
        (path / "values.npz").unlink()
    with raises(CorruptCheckpointError, "remove that directory"):
        program()


def test_news_is_seen_once_and_is_no_warning(caplog, capsys):
    announce("fit continues from %s", "x")
    assert [each.levelname for each in caplog.records] == ["INFO"]
    assert capsys.readouterr().err == ""
    caplog.set_level(logging.WARNING, "tfdist")
    announce("fit continues from %s", "x")
    assert capsys.readouterr().err == "tfdist: fit continues from x\n"
    assert len(caplog.records) == 1
