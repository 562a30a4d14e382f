"""Explains a load that fails because the chief may not have written the file yet."""

import contextlib
import zipfile
from collections.abc import Iterator
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


@contextlib.contextmanager
def explained(strategy: Any, path: Any) -> Iterator[None]:
    """Adds what to do to the error of a load, on a worker that is not the chief.

    Args:
        strategy: That of the process, or None.
        path: What is loaded.
    """
    try:
        yield
    except Exception as error:
        waits = hasattr(strategy, "barrier") and not strategy.is_chief
        if waits and (isinstance(error, _ERRORS) or "File not found" in str(error)):
            advise(error, _words(strategy, path))
        raise


def _words(strategy: Any, path: Any) -> str:
    return (
        f"This is worker {strategy.extended.worker_index} of {strategy.num_workers}, and "
        f"only the chief, worker 0, saves: it may not have written {path} yet. Call "
        "strategy.barrier() on every worker between the save and the load, and save to a "
        "directory that all workers share"
    )
