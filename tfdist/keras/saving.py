"""The patches of saving, exporting and loading, which ask the strategy's driver.

Steps may be in flight when a callback saves at the end of a batch. If every task runs
the script, only one of them may write. Every way to save in Keras (`model.save`,
`keras.saving.save_weights`, a callback) calls one of the functions below.

A worker whose script saves and loads at once waits for the file that the chief saves: its
own call of `save` has done nothing, and notes that the chief's does. So does a worker that
saves to a directory of its own, as TensorFlow's guides do, and loads the chief's file of the
same name. Without such a call, the error of the load says what to do.
"""

import contextlib
import functools
import inspect
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._refusal import advise
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.keras.driver import driver_of

# Of a file that is not there, or that has been written in part.
_ERRORS = (
    OSError,
    zipfile.BadZipFile,
    tf.errors.NotFoundError,
    tf.errors.DataLossError,
)

_SECONDS = 120.0
_LOOK_EVERY = 0.1  # seconds

_began = time.monotonic()
"""When this process began: a file that is older is of another run."""
_left_to_chief: set[str] = set()
"""The paths that the script of this worker saves, and that were not loaded since."""
_loaded: dict[str, float] = {}
"""By its path, when a file was written that the chief's next one replaces."""


def install() -> None:
    """Patches every save, export and load to run inside the driver's `storing`.

    A load waits for a file that the chief saves, or says what to do.
    """
    for operation, owner, name in (
        ("save", keras.Model, "save"),
        ("save", keras.Model, "save_weights"),
        ("save", _tf.saving_lib, "save_model"),
        ("save", _tf.saving_lib, "save_weights_only"),
        ("hdf5", _tf.legacy_h5_format, "save_model_to_hdf5"),
        ("export", keras.Model, "export"),
        ("load", _tf.saving_lib, "load_weights_only"),
        ("checkpoint", tf.train.Checkpoint, "save"),
        ("checkpoint", tf.train.Checkpoint, "write"),
        ("checkpoint", tf.train.CheckpointManager, "save"),
    ):
        setattr(owner, name, _surrounded(getattr(owner, name), operation))
    for owner, name in (
        (keras.Model, "load_weights"),
        (keras.saving, "load_model"),
        (keras.models, "load_model"),
        # A module of its own, with the same function.
        (tf.keras.models, "load_model"),
        (tf.saved_model, "load"),
        (tf.train, "latest_checkpoint"),
        (tf.train.Checkpoint, "read"),
        (tf.train.Checkpoint, "restore"),
    ):
        setattr(owner, name, _from_chief(getattr(owner, name)))


def _from_chief(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that loads a path once the chief has written it."""
    path_of = _reader_of_path(function)

    @functools.wraps(function)
    def load(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(function, *args, **kwargs)
        return load_from_chief(MEMBERSHIP.strategy, path_of(args, kwargs), call)

    return load


def _reader_of_path(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Returns what finds, in a call's arguments, the path that a function saves or loads.

    It is the first argument, after what is saved: `self` or a model.
    """
    names = list(inspect.signature(function).parameters)
    position = next(i for i, each in enumerate(names) if each not in ("self", "model"))

    def path_of(args: Any, kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        return given.get(names[position])

    return path_of


def _surrounded(function: Callable[..., Any], operation: str) -> Callable[..., Any]:
    path_of = _reader_of_path(function)

    @functools.wraps(function)
    def surrounded(saved: Any, *args: Any, **kwargs: Any) -> Any:
        # A `tf.train.Checkpoint` knows no strategy, so use that of the process.
        own = driver_of(getattr(saved, "distribute_strategy", None))
        driver = own or driver_of(MEMBERSHIP.strategy)
        # While a graph is traced, nothing is saved yet.
        if driver is None or not tf.executing_eagerly():
            return function(saved, *args, **kwargs)
        with driver.storing(saved, operation) as is_done_here:
            if not is_done_here:
                leave_to_chief(path_of((saved, *args), kwargs))
                return None
            result = function(saved, *args, **kwargs)
        is_other = not getattr(driver.strategy, "is_chief", True)
        if operation == "checkpoint" and is_other and isinstance(result, str):
            # Every worker writes one, and this one may load the chief's.
            leave_to_chief(result)
            leave_to_chief(os.path.dirname(result))
        return result

    return surrounded


def leave_to_chief(path: Any) -> None:
    """Takes note that the script saves a file, which the chief alone writes."""
    if key := _absolute(path):
        _left_to_chief.add(key)


def load_from_chief(
    strategy: Any, path: Any, load: Callable[[], Any], seconds: float = _SECONDS
) -> Any:
    """Loads a file; waits, for `seconds` at most, if it was left to the chief."""
    key = _absolute(path)
    with explained(strategy, path):
        left = left_as(key, _left_to_chief, os.path.exists)
        if left is None:
            return load()
        began = _began_in(os.path.dirname(key))
        deadline = time.monotonic() + seconds
        while True:
            try:
                written = _when_written(key)
                if written <= _loaded.get(key, began):
                    raise FileNotFoundError(f"{path} is older than the chief's save")
                loaded = load()
            except Exception as error:
                # It is not there, or the chief is writing it.
                if not _is_missing(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_EVERY)
            else:
                _left_to_chief.discard(left)
                _loaded[key] = written
                return loaded


def left_as(
    path: str, left: Collection[str], exists: Callable[[str], bool]
) -> str | None:
    """Returns the path that a script has saved, given the one that it loads; else None.

    A worker that saves to a directory of its own has saved the chief's file of the same
    name if there is no such file yet, or if its own directory is within that of the
    chief's file or was removed since: an old file would be one of an earlier run.
    """
    if path in left:
        return path
    directory, name = os.path.split(path)
    for each in left:
        own, its_name = os.path.split(each)
        is_own = not exists(own) or own.startswith(os.path.join(directory, ""))
        if its_name == name and (is_own or not exists(path)):
            return each
    return None


def _began_in(directory: str) -> float:
    """Returns when this process began, by the clock that dates a directory's files.

    A file server's clock may differ from that of this host.
    """
    elapsed = time.monotonic() - _began
    if not os.path.isdir(directory):
        # All files that will be there are new.
        return 0.0
    try:
        with tempfile.NamedTemporaryFile(prefix=".tfdist-", dir=directory) as probe:
            return os.fstat(probe.fileno()).st_mtime - elapsed
    except PermissionError:
        # Nothing else tells the time of a directory that this worker only reads.
        return time.time() - elapsed


def _when_written(path: str) -> float:
    # A checkpoint, an exported model and a directory of checkpoints are complete with
    # these. TensorFlow's own `stat` knows the second alone, in which a file may be saved
    # twice.
    files = [f"{path}.index", f"{path}/saved_model.pb", f"{path}/checkpoint"]
    missing = files[-1] if os.path.isdir(path) else path
    return os.stat(next(filter(os.path.exists, files), missing)).st_mtime_ns / 1e9


def _absolute(path: Any) -> str:
    return os.path.abspath(path) if isinstance(path, str | os.PathLike) else ""


def _is_missing(error: Exception) -> bool:
    return isinstance(error, _ERRORS) or "File not found" in str(error)


@contextlib.contextmanager
def explained(strategy: Any, path: Any) -> Iterator[None]:
    """Adds what to do to the error of a load, on a worker that is not the chief."""
    try:
        yield
    except Exception as error:
        waits = hasattr(strategy, "barrier") and not strategy.is_chief
        if waits and _is_missing(error):
            advise(error, _words(strategy, path))
        raise


def _words(strategy: Any, path: Any) -> str:
    return (
        f"This is worker {strategy.extended.worker_index} of {strategy.num_workers}, and "
        f"only the chief, worker 0, saves: it may not have written {path} yet. Call "
        "strategy.barrier() on every worker between the save and the load, and save to a "
        "directory that all workers share"
    )
