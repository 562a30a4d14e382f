"""The patches of saving, exporting and loading, which ask the strategy's driver.

Steps may be in flight when a callback saves at the end of a batch. If every task runs
the script, only one of them may write. Every way to save in Keras (`model.save`,
`keras.saving.save_weights`, a callback) calls one of the functions below.

A worker whose script saves and loads at once waits until the chief has saved: its own call
of `save` has done nothing. So does a worker that saves to a directory or under a name of its
own, as TensorFlow's guides do, and loads the chief's. Scripts save in the same order, so that
both number the saves of a name alike, and all saves, and the chief tells the number of each
save that it has begun, and has ended. A chief that saves on, before the others have loaded,
is an error there. Without such a call, the error of the load says what to do.
"""

import contextlib
import functools
import inspect
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist._support.errors import RefusalError, advise
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.keras.driver import driver_of

# Of a file that is not there, or that has been written in part.
_ERRORS = (
    OSError,
    zipfile.BadZipFile,
    tf.errors.NotFoundError,
    tf.errors.DataLossError,
)

_OVERTAKEN = (
    "the chief must not save {} again before every worker has loaded what it saved before; "
    "it did. Call strategy.barrier() on every worker between the load and the next save"
)

_NOT_SAVED = (
    "the chief has not saved {} within {:g} s, or has made fewer saves than this worker. "
    "Make the same saves on every worker, in the same order"
)

_SECONDS = 120.0
_LOOK_EVERY = 0.1  # seconds

_ALL = ""
_saves: dict[str, int] = {}
"""The number of the last save of a file, by the file's name, and that of all saves."""
_written: set[str] = set()
"""The paths that this process has written itself."""
_is_within = ContextVar("is_within", default=False)
"""True while a save is part of another one."""


class OvertakenError(RefusalError):
    """The chief has saved a file again before this worker has loaded it."""


def install() -> None:
    """Patches every save, export and load to run inside the driver's `storing`.

    A load waits for a file that the chief saves, or says what to do.
    """
    # Newer versions of Keras make another class than the one that they export.
    archive = type(keras.export.ExportArchive())
    for operation, owner, name in (
        ("save", keras.Model, "save"),
        ("save", keras.Model, "save_weights"),
        ("save", _tf.saving_lib, "save_model"),
        ("save", _tf.saving_lib, "save_weights_only"),
        ("hdf5", _tf.legacy_h5_format, "save_model_to_hdf5"),
        ("export", keras.Model, "export"),
        ("archive", archive, "write_out"),
        ("load", _tf.saving_lib, "load_weights_only"),
        ("checkpoint", tf.train.Checkpoint, "save"),
        ("checkpoint", tf.train.Checkpoint, "write"),
        ("checkpoint", tf.train.CheckpointManager, "save"),
    ):
        setattr(owner, name, _surrounded(getattr(owner, name), operation))
    for owner, name in (
        (keras.Model, "load_weights"),
        (keras.saving, "load_weights"),
        (keras.saving, "load_model"),
        (keras.models, "load_model"),
        # A module of its own, with the same function.
        (tf.keras.models, "load_model"),
        (tf.saved_model, "load"),
        (tf.train, "get_checkpoint_state"),
        (tf.train, "latest_checkpoint"),
        (tf.train, "list_variables"),
        (tf.train, "load_checkpoint"),
        (tf.train, "load_variable"),
        (tf.train.CheckpointManager, "__init__"),
        (tf.train.Checkpoint, "read"),
        (tf.train.Checkpoint, "restore"),
    ):
        setattr(owner, name, _from_chief(getattr(owner, name)))


def _from_chief(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that loads a path once the chief has written it."""
    path_of = _reader_of_path(function)

    @functools.wraps(function)
    def load(*args: object, **kwargs: object) -> Any:
        call = functools.partial(function, *args, **kwargs)
        return load_from_chief(MEMBERSHIP.strategy, path_of(args, kwargs), call)

    return load


def _reader_of_path(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Returns a function that finds the saved or loaded path in a call's arguments.

    It is the first argument, after what is saved.
    """
    names = list(inspect.signature(function).parameters)
    saved = ("self", "model", "checkpoint")
    position = next(i for i, each in enumerate(names) if each not in saved)

    def path_of(args: Any, kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        return given.get(names[position])

    return path_of


def _surrounded(function: Callable[..., Any], operation: str) -> Callable[..., Any]:
    path_of = _reader_of_path(function)

    @functools.wraps(function)
    def surrounded(saved: Any, *args: object, **kwargs: object) -> Any:
        if operation == "archive" and not hasattr(saved, "distribute_strategy"):
            saved.distribute_strategy = MEMBERSHIP.strategy
        # A `tf.train.Checkpoint` knows no strategy, so use that of the process.
        own = driver_of(getattr(saved, "distribute_strategy", None))
        driver = own or driver_of(MEMBERSHIP.strategy)
        # While a graph is traced, nothing is saved yet.
        if driver is None or not tf.executing_eagerly():
            return function(saved, *args, **kwargs)
        is_outermost = not _is_within.get()
        is_save = own and operation != "load"
        paths = [path_of((saved, *args), kwargs)] if is_save else []
        result = None
        with (
            setting(_is_within, True),
            driver.storing(saved, operation) as is_done_here,
        ):
            if is_outermost:
                _announce(paths, driver)
            if is_done_here:
                result = function(saved, *args, **kwargs)
        if operation == "checkpoint" and isinstance(result, str):
            # Every worker writes one, and may load the chief's.
            paths = [result, os.path.dirname(result)]
        if is_outermost:
            _number(paths, driver, is_done_here)
        return result

    return surrounded


def _announce(paths: list[Any], driver: Any) -> None:
    """Tells the others, on the chief, that a save begins."""
    strategy = driver.strategy
    if (board := getattr(strategy, "board", None)) is None or not strategy.is_chief:
        return
    for name in map(os.path.basename, filter(None, map(_absolute, paths))):
        board.tell(_begun(name), next_number(_saves.get(name, 0), driver.calls))


def _number(paths: list[Any], driver: Any, is_done_here: bool) -> None:
    """Numbers a save. The chief tells the others that it has ended."""
    strategy = driver.strategy
    if (board := getattr(strategy, "board", None)) is None:
        return
    for path in filter(None, map(_absolute, paths)):
        (_written.add if is_done_here else _written.discard)(path)
        for name in (os.path.basename(path), _ALL):
            number = _saves[name] = next_number(_saves.get(name, 0), driver.calls)
            if strategy.is_chief:
                board.tell(_key(name), number)


def next_number(last: int, calls: int) -> int:
    """Returns the number of a save, the same on the chief and on every other worker.

    Callbacks of the chief alone save, too. So it is a count since the last call that all
    workers made together, after the number of these calls.

    >>> next_number(next_number(0, calls=3), calls=4) == next_number(0, calls=4)
    True
    """
    return max(last, calls << 32) + 1


def load_from_chief(
    strategy: tf.distribute.Strategy,
    path: Any,
    load: Callable[[], Any],
    seconds: float = _SECONDS,
) -> Any:
    """Loads a file; waits, for `seconds` at most, if the chief is to save it."""
    key = _absolute(path)
    with explained(strategy, path):
        board = getattr(strategy, "board", None)
        if board is None or strategy.is_chief or not key or key in _written:
            return load()
        name, deadline = os.path.basename(key), time.monotonic() + seconds
        calls = driver_of(strategy).calls
        told, begun = _told(board, name)
        while (number := due(name, _saves, told, calls)) is None or begun > told[name]:
            if time.monotonic() > deadline:
                raise FileNotFoundError(_NOT_SAVED.format(path, seconds))
            time.sleep(_LOOK_EVERY)
            told, begun = _told(board, name)
        try:
            return load()
        finally:
            _, newest = _told(board, name)
            if newest > begun or is_overtaken(number, newest):
                raise OvertakenError(_OVERTAKEN.format(path))


def _told(board: Any, name: str) -> tuple[dict[str, int], int]:
    """Returns the numbers of the chief's saves, and of the last one of a name it began."""
    names = [*_saves, name]
    told = board.told([*map(_key, names), _begun(name)])
    *ended, begun = (max(each, 0) for each in told)
    # Of a checkpoint, the chief does not tell that it has begun.
    return dict(zip(names, ended, strict=True)), max(begun, ended[-1])


def due(
    name: str, saves: Mapping[str, int], told: Mapping[str, int], calls: int
) -> int | None:
    """Returns the number of the chief's save of a file that a worker is to load.

    Returns 0 for any, and None if the chief has not saved under that name, or has not
    saved in all, as often as the worker. For what the worker has saved under a name that
    the chief does not use, the chief has saved a file of another name.

    Args:
        name: The file's name.
        saves: By its name, the number of the worker's last save of a file. That of all
            its saves is under "".
        told: The same of the chief.
        calls: The number of calls that all workers have made together.

    >>> saves = {"model-1": 1, "": 1}
    >>> due("model-0", saves, {"": 0}, 0), due("model-0", saves, {"model-0": 1, "": 1}, 0)
    (None, 1)
    """
    if saves.get(_ALL, 0) >> 32 < calls:
        return 0
    if any(told.get(each, 0) < saves.get(each, 0) for each in (_ALL, name)):
        return None
    alone = [number for each, number in saves.items() if told.get(each, 0) < number]
    return saves.get(name) or max(alone, default=0)


def is_overtaken(number: int, newest: int) -> bool:
    """Returns True if the chief has saved again before a worker has loaded a save.

    After a later call of all workers, that is what the worker is to load.

    >>> [is_overtaken((3 << 32) + 1, newest) for newest in ((3 << 32) + 2, (4 << 32) + 1)]
    [True, False]
    """
    return 0 < number < newest and newest >> 32 == number >> 32


def _key(name: str) -> str:
    return f"saved {name}"


def _begun(name: str) -> str:
    return f"saving {name}"


def _absolute(path: Any) -> str:
    return os.path.abspath(path) if isinstance(path, str | os.PathLike) else ""


def _is_missing(error: Exception) -> bool:
    return isinstance(error, _ERRORS) or "File not found" in str(error)


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy, path: Any) -> Iterator[None]:
    """Adds advice to the error of a load, on a worker that is not the chief."""
    try:
        yield
    except Exception as error:
        waits = hasattr(strategy, "barrier") and not strategy.is_chief
        if waits and _is_missing(error):
            advise(error, _words(strategy, path))
        raise


def _words(strategy: tf.distribute.Strategy, path: Any) -> str:
    return (
        f"This is worker {strategy.extended.worker_index} of {strategy.num_workers}, and "
        f"only the chief, worker 0, saves: it may not have written {path} yet. Call "
        "strategy.barrier() on every worker between the save and the load, and save to a "
        "directory that all workers share"
    )
