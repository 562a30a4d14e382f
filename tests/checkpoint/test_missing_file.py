"""A worker that loads what the chief has not written yet is told to wait for it."""

import contextlib
import gc
import sys
import zipfile
from types import SimpleNamespace

import h5py
import keras
import pytest
import tensorflow as tf

import tf_config
from tfdist.cluster.board import Board
from tfdist.keras import saving
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.saving import due, explained, load_from_chief

from ..support.addresses import free_addresses
from ..support.raising import raises


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
    said = explained(worker(1), path)
    # A load may call another one, and the advice is given once.
    with pytest.raises(ERRORS) as raised, said, explained(worker(1), path):
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


def peers_of_a_job(is_chief, told=None):
    """A driver whose worker is told what the chief has told, and tells it."""
    told = {} if told is None else told
    strategy = worker(0 if is_chief else 1)
    strategy.board = SimpleNamespace(
        tell=told.__setitem__, told=lambda keys: [told.get(each, -1) for each in keys]
    )
    # Without the patches of Keras that a new one makes.
    strategy.fit_driver = driver = DefaultDriver.__new__(DefaultDriver)
    driver.strategy = strategy
    return driver, told


@pytest.fixture
def nothing_saved(monkeypatch):
    monkeypatch.setattr(saving, "_saves", {})
    monkeypatch.setattr(saving, "_written", set())


@pytest.mark.parametrize("own", ["/a/model.keras", "/b/model.keras"])
def test_a_load_waits_for_the_save_that_the_chief_has_numbered_alike(
    own, nothing_saved, monkeypatch
):
    driver, told = peers_of_a_job(is_chief=False)
    monkeypatch.setattr(saving, "time", clock := SimpleNamespace())
    clock.monotonic = lambda: 0.0
    for calls, number in [(1, 1), (1, 2), (4, 1)]:
        driver.calls = calls
        saving._number([own], driver, is_done_here=False)
        told["saved model.keras"] = (calls << 32) + number - 1
        told["saved other.keras"] = 9 << 32
        looks = []

        def save(_, number=(calls << 32) + number, looks=looks):
            looks.append(number)
            told["saved model.keras"] = told["saved "] = number

        clock.sleep = save
        loaded = load_from_chief(driver.strategy, "/a/model.keras", lambda: "read")
        assert (loaded, len(looks)) == ("read", 1)
        # Nothing was saved since.
        assert load_from_chief(driver.strategy, "/a/model.keras", looks.copy) == looks


@pytest.mark.parametrize("key", ["saved a.keras", "saving a.keras"])
def test_a_chief_that_saves_again_before_a_load_is_an_error(key, nothing_saved):
    driver, told = peers_of_a_job(is_chief=False)
    driver.calls = 3
    saving._number(["a.keras"], driver, is_done_here=False)
    told["saved a.keras"] = told["saved "] = number = (3 << 32) + 1

    def load():
        told[key] = number + 1
        raise OSError("in part")

    for read in (load, lambda: "the next one"):
        with pytest.raises(saving.OvertakenError):
            load_from_chief(driver.strategy, "a.keras", read)
        told["saved a.keras"] = number + 1
    # All workers have made another call: the worker is to load what is there.
    driver.calls = 4
    assert load_from_chief(driver.strategy, "a.keras", lambda: "new") == "new"


def test_a_save_that_the_chief_does_not_make_is_an_error(nothing_saved):
    driver, _ = peers_of_a_job(is_chief=False)
    saving._number(["a.keras"], driver, is_done_here=False)
    with raises(FileNotFoundError, "a.keras", "-1 s"):
        load_from_chief(driver.strategy, "a.keras", lambda: "old", seconds=-1.0)


def test_what_the_chief_is_writing_is_not_loaded(nothing_saved):
    driver, told = peers_of_a_job(is_chief=False)
    told |= {"saved a.keras": 1, "saving a.keras": 2}
    with raises(FileNotFoundError, "a.keras", "-1 s"):
        load_from_chief(driver.strategy, "a.keras", lambda: "half", seconds=-1.0)


def test_a_file_of_each_directory_is_loaded_once_all_are_saved(nothing_saved):
    driver, told = peers_of_a_job(is_chief=False)
    paths = ["/first/a.keras", "/second/a.keras"]
    for path in paths:
        saving._number([path], driver, is_done_here=False)
    told |= dict.fromkeys(("saving a.keras", "saved a.keras", "saved "), 2)
    for path in paths:
        assert load_from_chief(driver.strategy, path, lambda: "read") == "read"


def test_the_chief_tells_each_save_and_waits_for_none(nothing_saved):
    driver, told = peers_of_a_job(is_chief=True)
    driver.calls = 2
    saving._number(["d/a.keras", "d"], driver, is_done_here=True)
    saving._number(["a.keras"], driver, is_done_here=True)
    all_saves = {"saved ": (2 << 32) + 3}
    assert told == all_saves | {
        "saved a.keras": (2 << 32) + 2,
        "saved d": (2 << 32) + 1,
    }
    assert load_from_chief(driver.strategy, "a.keras", lambda: "read") == "read"


def test_a_save_of_several_parts_counts_once_and_a_load_does_not(
    nothing_saved, monkeypatch, tmp_path
):
    driver, told = peers_of_a_job(is_chief=True)
    driver.storing = lambda *_: contextlib.nullcontext(True)
    monkeypatch.setattr(saving, "driver_of", lambda _: driver)
    part = saving._surrounded(lambda model, path: None, "save")
    whole = saving._surrounded(lambda model, path: part(model, path), "save")
    whole(object(), tmp_path / "a.keras")
    saving._surrounded(lambda model, path: None, "load")(object(), tmp_path / "a.keras")
    assert told == {"saving a.keras": 1, "saved a.keras": 1, "saved ": 1}


AT = 3 << 32


def numbers(**counts):
    """The numbers of saves by the names of files, of which "" is the number of all."""
    of_names = {name: AT + count for name, count in counts.items()}
    return {"": AT + sum(counts.values())} | of_names


@pytest.mark.parametrize(
    ("mine", "of_chief", "number"),
    [
        ({}, {}, 0),
        ({"m0": 1}, {}, None),
        ({"m0": 1}, {"m0": 1}, AT + 1),
        ({"m0": 2}, {"m0": 1}, None),
        # The chief has made a save that this worker has not.
        ({"m0": 1}, {"best": 1}, None),
        ({"m0": 1}, {"best": 1, "m0": 1}, AT + 1),
        # Each worker saves under a name of its own.
        ({"m1": 1}, {}, None),
        ({"m1": 1}, {"m0": 1}, AT + 1),
        ({"m1": 2}, {"m0": 1}, None),
        ({"m1": 1}, {"m0": 2}, AT + 1),
        ({"m1": 1, "last": 1}, {"last": 1}, None),
        ({"m1": 1, "last": 1}, {"last": 1, "m0": 1}, AT + 1),
        # What the chief does not save is there already.
        ({"last": 1}, {}, None),
        ({"last": 1}, {"last": 1}, 0),
        ({"m1": 1}, {"other": 1}, AT + 1),
    ],
)
def test_the_save_of_the_chief_for_which_a_load_waits(mine, of_chief, number):
    assert due("m0", numbers(**mine), numbers(**of_chief), calls=3) == number
    # All workers have met since, and the chief has made all saves from before.
    assert due("m0", numbers(**mine), numbers(**of_chief), calls=4) == 0


def test_what_a_worker_is_told_is_there_when_the_other_has_ended():
    chief, other, gone = (tf_config.Task("worker", index) for index in range(3))
    addresses = dict(zip((chief, other, gone), free_addresses(3), strict=True))
    alone = tf.train.ClusterSpec({"worker": {1: addresses[other]}})
    server = tf.distribute.Server(alone, "worker", 1)
    board = Board(addresses, other)
    assert board.told(["a", "b"]) == [-1, -1]
    for number in (1, 2):
        Board(addresses, chief).tell("a", number)
        assert board.told(["a"]) == [number]
    board.tell("a", 3)
    assert board.told(["a"]) == [2]
    del server


def test_a_worker_that_has_ended_is_neither_told_nor_asked_to_close(monkeypatch):
    asked = []
    session = tf.compat.v1.Session

    def run(self, *args):
        asked.append("run")
        return super(session, self).run(*args)

    me, other = (tf_config.Task("worker", index) for index in range(2))
    addresses = dict(zip((me, other), free_addresses(2), strict=True))
    alone = tf.train.ClusterSpec({"worker": {1: addresses[other]}})
    server = tf.distribute.Server(alone, "worker", 1)
    monkeypatch.setattr(session, "run", run)
    monkeypatch.setattr(session, "close", lambda self: asked.append("close"))
    board = Board(addresses, me)
    board.tell("a", 1)
    assert asked == ["run"]
    # Each of these requests would wait for seconds.
    monkeypatch.setattr("tfdist.cluster.board.unreachable", list)
    board.tell("a", 2)
    del board
    gc.collect()
    assert asked == ["run"]
    del server


def test_a_file_that_nobody_saves_is_not_waited_for(tmp_path, nothing_saved):
    path = tmp_path / "never.keras"
    driver, _ = peers_of_a_job(is_chief=False)
    with raises(FileNotFoundError, "No such file"):
        load_from_chief(driver.strategy, path, path.read_text, seconds=-1.0)
