"""A `fit` that goes on where the process before has left off.

It is a callback behind all others, so it sees what they have made of a step.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.checkpoint.plain import from_json
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.checkpoint.store import CheckpointStore, CorruptCheckpointError
from tfdist.liveness.step_error import reason
from tfdist.parameter_server.fit.checkpoints import (
    Checkpoints,
    Progress,
    described,
    groups_of,
)
from tfdist.parameter_server.fit.feed import Feed
from tfdist.parameter_server.fit.in_flight import InFlight

_log = logging.getLogger("tfdist")

# Keras gives a callback the first two, and `EarlyStopping` turns its `min_delta` round
# when it begins: restored, it would be turned back.
_NOT_ITS_STATE = ("params", "_model", "min_delta")
# These are the fault of a ps, and not of the checkpoint that it reads.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_CORRUPT = (tf.errors.OpError, OSError, ValueError, TypeError, KeyError)


class CheckpointMismatchError(ValueError):
    """The checkpoint is of another model."""


@contextlib.contextmanager
def resumable_fit(
    model: Any,
    arguments: dict[str, Any],
    number: int,
    options: CheckpointOptions,
    in_flight: InFlight,
) -> Iterator["ResumableFit"]:
    """Surrounds a call of `fit` that continues from its newest checkpoint.

    The n-th `fit` of a program has the n-th directory. One that had finished returns at
    once, with its variables and its history.

    Args:
        model: The Keras model.
        arguments: Of `fit`, by name. A callback is added to them.
        number: Which `fit` of the program this is, from 0.
        options: Of the checkpoints, with a directory.
        in_flight: The steps under way.
    """
    assert options.directory is not None
    directory = Path(options.directory, f"fit-{number:03d}")
    with CheckpointStore(directory, options.to_keep) as store:
        given = arguments.get("callbacks")
        callbacks = _with_history(given)
        resumable = ResumableFit(
            options, in_flight, store, callbacks, arguments.get("epochs", 1)
        )
        resumable.find_checkpoint()
        if isinstance(given, keras.callbacks.CallbackList):
            given.append(resumable)
        else:
            arguments["callbacks"] = [*callbacks, resumable]
        try:
            yield resumable
        finally:
            model._initial_epoch = None
            resumable.settle()


def _with_history(given: Any) -> list[Any]:
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    callbacks = keras.tree.flatten(given) if given else []
    if not any(isinstance(each, keras.callbacks.History) for each in callbacks):
        # Keras adds one behind ours, which would not have seen the epoch's end.
        callbacks.append(keras.callbacks.History())
    return callbacks


class ResumableFit(keras.callbacks.Callback):
    """Restores the newest checkpoint when `fit` begins, and writes others.

    Args:
        options: Say how often.
        in_flight: The steps under way.
        store: Of this `fit`.
        callbacks: The others, which come before this one.
        epochs: How many `fit` is asked for.
    """

    # Its hooks before a batch are never called by another thread.
    async_safe = True

    def __init__(
        self,
        options: CheckpointOptions,
        in_flight: InFlight,
        store: CheckpointStore,
        callbacks: list[Any],
        epochs: int,
    ) -> None:
        super().__init__()
        self._options = options
        self._in_flight = in_flight
        self._store = store
        self._callbacks = callbacks
        self._progress = Progress(epochs)
        self._changes = Changes(callbacks, _NOT_ITS_STATE)
        self._checkpoints: Checkpoints | None = None
        self._found: Iterator[Path] = iter(())
        self._first: Path | None = None
        self._restored: tuple[Path, Snapshot] | None = None
        self._epoch_begins = False

    def find_checkpoint(self) -> None:
        """Looks for a checkpoint, before other callbacks begin."""
        self._found = self._store.whole()
        self._first = next(self._found, None)
        for each in self._callbacks:
            if self._first and isinstance(each, keras.callbacks.CSVLogger):
                each.append = True  # It would begin its file anew.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the variables, the other callbacks and the first epoch."""
        self._checkpoints = Checkpoints(
            self._options,
            self._in_flight,
            self._store,
            self.model,
            self._progress,
            self._changes,
        )
        self._restored = self._restore()
        if self._restored is None:
            return
        path, snapshot = self._restored
        position = snapshot.position
        states = [
            (name, from_json(state, snapshot.arrays))
            for name, state in snapshot.callbacks
        ]
        for each in self._callbacks:
            # The first of its class gets the state of the first, and so on.
            same = [state for state in states if state[0] == type(each).__name__]
            if same:
                vars(each).update(same[0][1])
                states.remove(same[0])
        epochs = self._progress.epochs
        at_end = snapshot.finished and snapshot.epochs >= epochs
        epoch = epochs if at_end else position.epoch
        self.model._initial_epoch = self._progress.epochs_done = epoch
        if epoch >= epochs:
            _log.warning(
                "fit has nothing left to do: %s is %s, and %d are asked for",
                path,
                f"the end of {snapshot.epochs} epochs"
                if at_end
                else f"of epoch {epoch}",
                epochs,
            )
        else:
            _log.warning(
                "fit goes on from %s: epoch %d of %d, step %d",
                path,
                epoch + 1,
                epochs,
                position.step,
            )

    def _restore(self) -> tuple[Path, Snapshot] | None:
        groups = groups_of(self.model)
        path, has_begun = self._first, False
        while path is not None:
            try:
                snapshot = Snapshot.read(path)
                self._check_model(path, snapshot)
                has_begun = True
                variables.read(path, **groups)
            except (CheckpointMismatchError, *_LOST):
                raise
            except _CORRUPT as error:
                self._store.skip(path, reason(str(error)).partition("\n")[0])
                path = next(self._found, None)
            else:
                return path, snapshot
        if self._store.has_corrupt:
            so_far = ", and some variables have been restored" if has_begun else ""
            raise CorruptCheckpointError(
                f"no checkpoint in {self._store.directory} can be read to its end"
                f"{so_far}: remove that directory to begin anew"
            )
        return None

    def _check_model(self, path: Path, snapshot: Snapshot) -> None:
        differs = variables.difference(snapshot.variables, described(self.model))
        if differs:
            raise CheckpointMismatchError(
                f"{path} is not of this model: it has {differs}. Name another "
                "checkpoint_dir, or remove that one to begin anew"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics, which Keras has just reset."""
        self._epoch_begins = True
        if self._restored is not None:
            path, snapshot = self._restored
            if snapshot.position.step and not snapshot.finished:
                variables.read(path, metrics=groups_of(self.model)["metrics"])
        self._progress.epochs_done = epoch

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes the steps of an epoch on, without those that were run before.

        Args:
            epoch_iterator: Keras's, of `fit` or of an evaluation within it.
            steps: What it yields: the first and the last step, and the data.
        """
        if not self._epoch_begins:
            yield from steps
            return
        self._epoch_begins = False
        progress = self._progress
        progress.epoch_iterator, progress.feed = epoch_iterator, None
        first_step = 0
        for begin, end, feed in steps:
            if feed is not progress.feed:
                progress.feed = feed
                first_step = self._start_at(epoch_iterator, feed)
                feed.state()  # It is traced now, as all that a checkpoint needs is.
            if begin >= first_step:
                yield begin, end, feed

    def _start_at(self, epoch_iterator: Any, feed: Feed) -> int:
        restored, self._restored = self._restored, None
        if restored is None:
            self._progress.batches_before = feed.taken
            return 0
        _, snapshot = restored
        position = snapshot.position
        self._progress.batches_before = position.batches_before
        if feed.worker_input is not None:
            _log.warning(
                "the workers read their endless dataset from its beginning again"
            )
        elif position.batches:
            feed.start_at(position.batches, snapshot.data, snapshot.put_back)
            epoch_iterator._steps_seen += position.batches_before
        return position.step

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Has a checkpoint written, if one is due."""
        assert self._checkpoints
        self._checkpoints.before_step(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        self._progress.epochs_done = epoch + 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the last checkpoint, unless there was nothing left to do."""
        if self._progress.feed is not None:
            assert self._checkpoints
            self._checkpoints.at_end()

    def settle(self) -> None:
        """Waits for the checkpoint that is being written, but not for ever."""
        if self._checkpoints is not None:
            self._checkpoints.settle()
