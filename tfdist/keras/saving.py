"""The patches of saving, exporting and loading, which ask the strategy's driver.

Steps may be in flight when a callback saves at the end of a batch. If every task runs
the script, only one of them may write. Every way to save in Keras (`model.save`,
`keras.saving.save_weights`, a callback) calls one of the functions below.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.keras.driver import driver_of
from tfdist.keras.missing_file import leave_to_chief, load_from_chief


def install() -> None:
    """Patches every save, export and load to run inside the driver's `storing`.

    A load waits for a file that the chief saves, or says what to do.
    """
    for operation, owner, name in (
        ("save", keras.Model, "save"),
        ("save", keras.Model, "save_weights"),
        ("save", _tf.saving_lib, "save_model"),
        ("save", _tf.saving_lib, "save_weights_only"),
        ("save", _tf.legacy_h5_format, "save_model_to_hdf5"),
        ("export", keras.Model, "export"),
        ("load", _tf.saving_lib, "load_weights_only"),
        ("checkpoint", tf.train.Checkpoint, "save"),
        ("checkpoint", tf.train.Checkpoint, "write"),
        ("checkpoint", tf.train.CheckpointManager, "save"),
    ):
        setattr(owner, name, _surrounded(getattr(owner, name), operation))
    for owner, name, position in (
        (keras.Model, "load_weights", 1),
        (keras.saving, "load_model", 0),
        (keras.models, "load_model", 0),
        (tf.train.Checkpoint, "read", 1),
        (tf.train.Checkpoint, "restore", 1),
    ):
        setattr(owner, name, _from_chief(getattr(owner, name), position))


def _from_chief(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Returns a function that loads the path which is its argument of this position."""

    @functools.wraps(function)
    def load(*args: Any, **kwargs: Any) -> Any:
        path = (
            args[position] if len(args) > position else next(iter(kwargs.values()), "")
        )
        call = functools.partial(function, *args, **kwargs)
        return load_from_chief(MEMBERSHIP.strategy, path, call)

    return load


def _surrounded(function: Callable[..., Any], operation: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def surrounded(saved: Any, *args: Any, **kwargs: Any) -> Any:
        # A `tf.train.Checkpoint` knows no strategy, so use that of the process.
        own = driver_of(getattr(saved, "distribute_strategy", None))
        driver = own or driver_of(MEMBERSHIP.strategy)
        # While a graph is traced, nothing is saved yet.
        if driver is None or not tf.executing_eagerly():
            return function(saved, *args, **kwargs)
        with driver.storing(saved, operation) as is_done_here:
            if is_done_here:
                return function(saved, *args, **kwargs)
            leave_to_chief(next(iter((*args, *kwargs.values())), None))
            return None

    return surrounded
