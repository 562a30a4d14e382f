"""Contents of a `fit` checkpoint, and continuation from it in another process."""

import logging
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.errors import Error
from tfdist.checkpoint import variables
from tfdist.checkpoint.plain import from_json
from tfdist.checkpoint.snapshot import Snapshot

_log = logging.getLogger("tfdist")

EXCLUDED_ATTRIBUTES = ("params", "_model", "min_delta")
"""The attributes of callbacks that are no state.

Keras sets the first two itself. `EarlyStopping` flips the sign of `min_delta` when training
begins, so a restored value would be flipped twice.
"""


READ_ERRORS = (
    tf.errors.OpError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    zipfile.BadZipFile,
)
"""The errors of reading a checkpoint whose files are damaged.

A large file has no checksum in the manifest, so only its reader notices.
"""


class CheckpointMismatchError(Error, ValueError):
    """The checkpoint belongs to a different model."""


def groups_of(model: keras.Model) -> dict[str, list[Any]]:
    """Groups the variables of a model and its optimizer apart from its metrics'."""
    # Keras resets the metrics as each epoch begins, so they must be restored after
    # that, apart from the rest.
    metrics = model.metrics_variables
    those = {id(each) for each in metrics}
    every = [*model.variables, *model.optimizer.variables]
    rest = {id(each): each for each in every if id(each) not in those}
    return {"model": list(rest.values()), "metrics": list(metrics)}


def described(model: keras.Model) -> list[Any]:
    """Describes the variables of a model as a checkpoint does."""
    groups = groups_of(model)
    return variables.describe([*groups["model"], *groups["metrics"]])


def check_model(where: str | Path, snapshot: Snapshot, model: keras.Model) -> None:
    """Checks that a checkpoint is one of this model."""
    differs = variables.difference(snapshot.variables, described(model))
    if differs:
        raise CheckpointMismatchError(
            f"{where} belongs to a different model: it has {differs}. Use another "
            "checkpoint_dir, or remove that one to start from scratch"
        )


def with_history(given: Any) -> list[Any]:
    """Returns the callbacks of a `fit`, one by one, with one for its history."""
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    callbacks = keras.tree.flatten(given) if given else []
    if not any(isinstance(each, keras.callbacks.History) for each in callbacks):
        # Keras would add one after our callback. At the end of an epoch, a checkpoint
        # would then be written before the history has that epoch.
        callbacks.append(keras.callbacks.History())
    return callbacks


def append_to_logs(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Keeps callbacks from truncating the files that an earlier process wrote."""
    for each in callbacks:
        if isinstance(each, keras.callbacks.CSVLogger):
            each.append = True


def restore_callbacks(
    callbacks: Iterable[keras.callbacks.Callback], snapshot: Snapshot
) -> None:
    """Restores the state of callbacks."""
    states = [
        (name, from_json(state, snapshot.arrays)) for name, state in snapshot.callbacks
    ]
    for each in callbacks:
        # Callbacks have no names, so those of one class are matched in their order.
        same = [state for state in states if state[0] == type(each).__name__]
        if same:
            vars(each).update(same[0][1])
            states.remove(same[0])


def announce(message: str, *values: object) -> None:
    """Tells the user what is no reason for a warning; a program may hide it.

    Python shows no INFO unless the program asks for it.
    """
    _log.info(message, *values)
    if not _log.isEnabledFor(logging.INFO) and _log.isEnabledFor(logging.WARNING):
        print(f"tfdist: {message % values}", file=sys.stderr, flush=True)


def first_epoch(where: str | Path, snapshot: Snapshot, epochs: int) -> int:
    """Returns the epoch in which a `fit` continues, and logs it."""
    position = snapshot.position
    # A `fit` can finish before its last epoch, for example by `EarlyStopping`. If
    # the user asks for more epochs now, it continues.
    at_end = snapshot.finished and snapshot.epochs >= epochs
    epoch = epochs if at_end else position.epoch
    if epoch >= epochs:
        announce(
            "fit has nothing left to do: %s is %s; epochs requested: %d",
            where,
            f"the end of {snapshot.epochs} epochs" if at_end else f"from epoch {epoch}",
            epochs,
        )
    else:
        announce(
            "fit continues from %s: epoch %d of %d, step %d",
            where,
            epoch + 1,
            epochs,
            position.step,
        )
    return epoch


def rate_of(model: keras.Model) -> float | None:
    """Returns the learning rate of a model's optimizer; None if a schedule has it."""
    for each in model.optimizer.variables:
        if each.name == "learning_rate":
            return float(each.numpy())
    return None


def tell_of_rate(model: keras.Model, rate: float | None) -> None:
    """Logs that the learning rate is that of a checkpoint, unless it is the script's too."""
    if rate is not None and (now := rate_of(model)) != rate:
        _log.warning(
            "the learning rate is %g, as in the checkpoint, and not the script's %g, unless "
            "a callback sets model.optimizer.learning_rate in on_epoch_begin",
            now,
            rate,
        )
