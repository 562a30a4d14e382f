"""Checkpoints on disk: whole or not there, and which are kept."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist import _tf
from tfdist.checkpoint import store as store_module
from tfdist.checkpoint.kept_fit import told_if_not_kept
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import (
    MANIFEST,
    CheckpointDirError,
    CheckpointStore,
    CorruptCheckpointError,
    check,
    expired,
    name_of,
    numbers,
)

from ..support.deadline import DEADLINE
from ..support.raising import raises


def write(store: CheckpointStore, text: str = "content") -> None:
    with store.writing() as path:
        (path / "part").write_text(text)
        (path / "deep").mkdir()
        (path / "deep" / "part").write_bytes(bytes(100))


def newest(store: CheckpointStore) -> str | None:
    return next((path.name for path in store.whole()), None)


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints", keep=2) as store:
        yield store


def test_the_newest_comes_first_and_as_many_as_asked_for_are_kept(store):
    for text in "abc":
        write(store, text)
    assert [path.name for path in store.whole()] == [name_of(2), name_of(1)]
    assert (next(store.whole()) / "part").read_text() == "c"


def test_numbers_go_on_in_the_next_process(store):
    write(store)
    store.close()
    with CheckpointStore(store.directory) as again:
        write(again)
        assert newest(again) == name_of(1)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "part").write_text("contents"), "8 bytes; it had 7"),
        (lambda path: (path / "part").write_text("contemt"), "has changed"),
        (lambda path: (path / "deep" / "part").unlink(), "deep/part is missing"),
        (lambda path: (path / MANIFEST).unlink(), "no manifest"),
        (lambda path: (path / MANIFEST).write_text('{"files": [['), "cannot be read"),
        (lambda path: (path / MANIFEST).write_text("[]"), "cannot be read"),
    ],
)
def test_a_corrupt_one_is_skipped_with_a_warning(store, caplog, damage, words):
    write(store)
    write(store)
    damage(store.path(1))
    with pytest.raises(CorruptCheckpointError, match=words):
        check(store.path(1))
    assert newest(store) == name_of(0)
    assert words in caplog.text
    assert "checkpoint-00000001" in caplog.text
    write(store)
    assert [path.name for path in store.whole()] == [name_of(2), name_of(0)]


def test_what_fails_leaves_no_trace_and_the_others_as_they_were(store):
    write(store)

    def write_half():
        with store.writing() as path:
            (path / "part").write_text("half")
            raise OSError(28, "No space left on device")

    with raises(OSError, "No space"):
        write_half()
    assert newest(store) == name_of(0)
    assert sorted(os.listdir(store.directory)) == [".lock", name_of(0)]


def test_a_checkpoint_that_cannot_be_flushed_does_not_count(store, monkeypatch):
    write(store)

    def fsync(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store_module.os, "fsync", fsync)
    with raises(OSError, "Input/output"):
        write(store)
    assert newest(store) == name_of(0)


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_that_counts(store):
    write(store)
    store.close()
    program = """
import os, signal, sys
from tfdist.checkpoint.store import CheckpointStore
with CheckpointStore(sys.argv[1]).writing() as path:
    (path / "part").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", program, str(store.directory)]
    assert subprocess.run(command, timeout=DEADLINE).returncode == -9
    assert any(name.startswith(".unfinished") for name in os.listdir(store.directory))
    with CheckpointStore(store.directory) as again:
        assert newest(again) == name_of(0)
        assert sorted(os.listdir(store.directory)) == [".lock", name_of(0)]


def test_two_processes_do_not_write_to_one_directory(store, monkeypatch):
    monkeypatch.setattr(store_module, "_SECONDS_FOR_THE_LOCK", 0.2)
    with raises(CheckpointDirError, "another process"):
        CheckpointStore(store.directory)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with raises(CheckpointDirError, "file/checkpoints"):
        CheckpointStore(tmp_path / "file" / "checkpoints")


def test_the_manifest_has_sizes_and_checksums(store, monkeypatch):
    monkeypatch.setattr(store_module, "_LARGEST_SUMMED", 50)
    write(store)
    files = dict(json.loads((store.path(0) / MANIFEST).read_text())["files"])
    assert files["deep/part"] == {"size": 100, "crc32": None}
    assert files["part"]["size"] == 7
    assert isinstance(files["part"]["crc32"], int)


@given(
    st.sets(st.integers(0, 10**8 - 1)),
    st.integers(1, 5),
    st.sets(st.integers(0, 10**8 - 1)),
)
def test_the_newest_whole_ones_are_kept(present, keep, corrupt):
    gone = expired(sorted(present), keep, corrupt)
    kept = present - gone
    assert gone <= present
    assert kept == set(sorted(present - corrupt)[-keep:])


@given(st.sets(st.integers(0, 10**8 - 1)))
def test_names_and_numbers(some):
    assert numbers(map(name_of, some)) == sorted(some, reverse=True)
    assert numbers(["checkpoint-1", "checkpoint-00000001.tmp", MANIFEST]) == []


def test_a_run_that_ended_before_its_first_is_told_of(tmp_path, caplog):
    CheckpointStore(tmp_path / "kept").close()
    assert not caplog.text
    CheckpointStore(tmp_path / "kept").close()
    assert (
        "kept has no checkpoint: the run before ended before its first" in caplog.text
    )


def test_a_position_in_data_is_written_whatever_bytes_it_has(tmp_path):
    no_text = [bytes([byte]) * 8 for byte in (0x8A, 0x8B, 0x8C)]
    data = tf.data.Dataset.range(2).flat_map(
        lambda _: tf.data.Dataset.from_tensor_slices(no_text)
    )
    batches, later = iter(data), iter(data)
    next(batches)
    state = _tf.iterator_state(batches)
    snapshot = Snapshot(Position(0), 1, False, [], [], data=state)
    snapshot.write(tmp_path, DataWriter())
    _tf.restore_iterator(later, Snapshot.read(tmp_path).data)
    assert next(later).numpy() == no_text[1]


def test_an_interrupt_says_what_is_left(tmp_path):
    def interrupt(store):
        with pytest.raises(KeyboardInterrupt) as caught, store:
            raise KeyboardInterrupt
        return str(caught.value)

    directory = tmp_path / "checkpoints"
    assert interrupt(CheckpointStore(directory)) == f"{directory} has no checkpoint yet"
    with CheckpointStore(directory) as store:
        write(store)
        write(store)
    os.utime(store.path(1), (time.time() - 40,) * 2)
    assert re.fullmatch(
        f"the next run continues from {store.path(1)}, 4[0-9] s old",
        interrupt(CheckpointStore(directory)),
    )


@pytest.mark.parametrize("directory", [None, "checkpoints"])
def test_an_interrupt_says_that_nothing_is_kept(directory):
    with pytest.raises(KeyboardInterrupt) as caught, told_if_not_kept(directory):
        raise KeyboardInterrupt
    assert ("no checkpoint was kept" in str(caught.value)) == (directory is None)
