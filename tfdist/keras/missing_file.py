"""Loads a file that only the chief saves, and may not have written yet.

A worker whose script saves and loads at once waits for the file: its own call of `save` has
done nothing, and says that the chief's does. Without such a call, the error of the load says
what to do.
"""

import contextlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._refusal import advise

# Of a file that is not there, or that has been written in part.
_ERRORS = (
    OSError,
    zipfile.BadZipFile,
    tf.errors.NotFoundError,
    tf.errors.DataLossError,
)


_SECONDS = 120.0
_LOOK_EVERY = 0.1  # seconds

_began = time.time()
"""When this process began: a file that is older is of another run."""
_left_to_chief: dict[str, float] = {}
"""By its path, when a file was written that the chief's next one replaces."""


def leave_to_chief(path: Any) -> None:
    """Takes note that the script saves a file, which the chief alone writes."""
    if key := _absolute(path):
        _left_to_chief.setdefault(key, _began)


def load_from_chief(
    strategy: Any, path: Any, load: Callable[[], Any], seconds: float = _SECONDS
) -> Any:
    """Loads a file, and waits, seconds at most, if the script has left it to the chief.

    Raises:
        Exception: That of the load, with what to do.
    """
    key = _absolute(path)
    with explained(strategy, path):
        if key not in _left_to_chief:
            return load()
        deadline = time.monotonic() + seconds
        while True:
            try:
                written = tf.io.gfile.stat(key).mtime_nsec / 1e9
                if written <= _left_to_chief[key]:
                    raise FileNotFoundError(f"{path} is older than the chief's save")
                loaded = load()
            except Exception as error:
                # It is not there, or the chief is writing it.
                if not _is_missing(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_EVERY)
            else:
                _left_to_chief[key] = written
                return loaded


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
