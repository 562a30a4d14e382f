"""A worker that loads what the chief has not written yet is told to wait for it."""

import os
import sys
import tempfile
import time
import zipfile
from types import SimpleNamespace

import h5py
import keras
import pytest
import tensorflow as tf

from tfdist.keras import saving
from tfdist.keras.saving import (
    explained,
    leave_to_chief,
    left_as,
    load_from_chief,
)


def worker(index: int) -> SimpleNamespace:
    return SimpleNamespace(
        barrier=lambda: None,
        is_chief=index == 0,
        num_workers=3,
        extended=SimpleNamespace(worker_index=index),
    )


def model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def h5_in_part(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"\x89HDF\r\n\x1a\n")
    h5py.File(path)


LOADS = {
    "model.keras": keras.saving.load_model,
    "model.h5": keras.saving.load_model,
    "a.weights.h5": lambda path: model().load_weights(path),
    "weights.keras": lambda path: model().load_weights(path),
    "in_part.h5": h5_in_part,
    "checkpoint": lambda path: tf.train.Checkpoint(model=model()).restore(path),
    "archive": lambda path: zipfile.ZipFile(path),
}


ERRORS = (ValueError, OSError, tf.errors.NotFoundError)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="it is logged there")
@pytest.mark.parametrize("name", LOADS)
def test_a_missing_file_names_the_barrier(name, tmp_path):
    path = str(tmp_path / name)
    with pytest.raises(ERRORS) as raised, explained(worker(1), path):
        LOADS[name](path)
    (note,) = raised.value.__notes__
    assert (
        f"worker 1 of 3, and only the chief, worker 0, saves: it may not have written {path}"
        in note
    )
    assert "Call strategy.barrier()" in note


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        (worker(0), FileNotFoundError()),
        (None, FileNotFoundError()),
        (object(), FileNotFoundError()),
        (worker(1), ValueError("the layers differ")),
    ],
)
def test_other_errors_stay_as_they_are(strategy, error):
    with pytest.raises(type(error)) as raised, explained(strategy, "a.keras"):
        raise error
    assert not hasattr(raised.value, "__notes__")


def test_before_notes_it_is_logged(caplog):
    class WithoutNotes(OSError):
        add_note = property()

    with pytest.raises(WithoutNotes), explained(worker(2), "a.keras"):
        raise WithoutNotes
    assert "Call strategy.barrier()" in caplog.text


def test_a_load_waits_for_the_file_that_the_chief_saves(tmp_path, monkeypatch):
    """Not for one of another run; and after another save, for that one."""
    path, loads = tmp_path / "a.weights.h5", []
    path.write_text("old")
    os.utime(path, (1, 1))
    leave_to_chief(path)

    def load():
        loads.append(path.read_text())
        if len(loads) == 1:
            raise OSError("truncated file")
        return loads[-1]

    # Its own clock alone: other threads of this process sleep, too.
    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda _: path.write_text("new")
    )
    monkeypatch.setattr(saving, "time", clock)
    assert load_from_chief(worker(1), path, load) == "new"
    assert loads == ["new", "new"]
    # Nothing was saved since.
    assert load_from_chief(worker(1), path, load, seconds=-1.0) == "new"
    leave_to_chief(path)
    with pytest.raises(FileNotFoundError, match="older than the chief's save"):
        load_from_chief(worker(1), path, load, seconds=-1.0)
    # Within the same second.
    later = os.stat(path).st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))
    assert load_from_chief(worker(1), path, load, seconds=-1.0) == "new"


def test_a_checkpoint_is_there_with_its_index(tmp_path):
    path = tmp_path / "ckpt"
    leave_to_chief(path)
    (tmp_path / "ckpt.index").write_text("")
    assert load_from_chief(worker(1), path, lambda: "read", seconds=-1.0) == "read"


def test_the_clock_of_a_file_server_may_be_behind(tmp_path, monkeypatch):
    """A file is of this run if it is newer than the process by the server's clock."""
    before = time.time() - 3600.0
    path, write = tmp_path / "behind.keras", tempfile.NamedTemporaryFile

    def write_there(**options):
        file = write(**options)
        os.utime(file.name, (before, before))
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", write_there)
    leave_to_chief(path)
    path.write_text("")
    os.utime(path, (before, before))
    assert load_from_chief(worker(1), path, lambda: "read", seconds=-1.0) == "read"


LOADED = {
    "model.keras": "model.keras",
    "exported": "exported/saved_model.pb",
    "checkpoints": "checkpoints/checkpoint",
    "ckpt-1": "ckpt-1.index",
}


@pytest.mark.parametrize("name", LOADED)
def test_a_worker_that_saves_elsewhere_waits_for_the_chief_s_file(
    name, tmp_path, monkeypatch
):
    """As TensorFlow's guide on several workers, with a file of an earlier run."""
    own, last = tmp_path / "workertemp_1" / name, tmp_path / LOADED[name]
    own.mkdir(parents=True)
    leave_to_chief(own)
    own.rmdir()
    last.parent.mkdir(exist_ok=True)
    last.write_text("old")
    os.utime(last, (1, 1))

    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda _: last.write_text("new")
    )
    monkeypatch.setattr(saving, "time", clock)
    path = tmp_path / name
    assert load_from_chief(worker(1), path, last.read_text) == "new"
    # Nothing was saved since.
    assert load_from_chief(worker(1), path, last.read_text, seconds=-1.0) == "new"


@pytest.mark.parametrize(
    ("path", "there", "left"),
    [
        ("/a/m.keras", {"/b"}, "/b/m.keras"),
        ("/a/m.keras", {"/b", "/a/m.keras"}, None),
        ("/a/m.keras", {"/a/m.keras"}, "/b/m.keras"),
        ("/m.keras", {"/b", "/m.keras"}, "/b/m.keras"),
        ("/a/other.keras", set(), None),
        ("/b/m.keras", {"/b/m.keras"}, "/b/m.keras"),
    ],
)
def test_the_file_that_the_chief_saves_for_a_worker(path, there, left):
    assert left_as(path, {"/b/m.keras"}, there.__contains__) == left


def test_a_file_that_nobody_saves_is_not_waited_for(tmp_path):
    path = tmp_path / "never.keras"
    with pytest.raises(FileNotFoundError):
        load_from_chief(worker(1), path, path.read_text)


def test_other_errors_of_a_load_are_not_tried_again(tmp_path):
    path = tmp_path / "b.keras"
    leave_to_chief(path)
    path.write_text("")

    def load():
        raise ValueError("the layers differ")

    with pytest.raises(ValueError, match="layers differ"):
        load_from_chief(worker(1), path, load)
