"""Continues a `fit` from the checkpoint of an earlier process.

The callback below comes after all others, so that it sees their state after each step.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Logs
from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.fit_state import (
    EXCLUDED_ATTRIBUTES,
    READ_ERRORS,
    CheckpointMismatchError,
    announce,
    append_to_logs,
    check_model,
    first_epoch,
    groups_of,
    rate_of,
    restore_callbacks,
    tell_of_rate,
    with_history,
)
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.checkpoint.store import CheckpointStore, CorruptCheckpointError
from tfdist.cluster.liveness.step_error import reason
from tfdist.cluster.settings import Checkpoints
from tfdist.parameter_server.checkpoints.checkpoints import (
    CheckpointWriter,
    FitProgress,
)
from tfdist.parameter_server.checkpoints.termination import Termination
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.steps.in_flight import InFlight

_log = logging.getLogger("tfdist")

# These mean that the ps which reads a checkpoint failed, not that the checkpoint is
# corrupt.
_LOST_PS_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@contextlib.contextmanager
def resumable_fit(
    model: keras.Model,
    arguments: dict[str, Any],
    number: int,
    options: Checkpoints,
    in_flight: InFlight,
) -> Iterator["ResumableFit"]:
    """Surrounds a call of `fit` that continues from its newest checkpoint.

    The n-th `fit` of a program uses the n-th directory. A `fit` that had already
    finished returns immediately, with its variables and its history.
    """
    assert options.directory is not None
    directory = Path(options.directory, f"fit-{number:03d}")
    with (
        Termination() as termination,
        CheckpointStore(directory, options.keep) as store,
    ):
        given = arguments.get("callbacks")
        callbacks = with_history(given)
        resumable = ResumableFit(
            options,
            in_flight,
            store,
            callbacks,
            arguments.get("epochs", 1),
            termination,
        )
        resumable.find_checkpoint()
        if isinstance(given, keras.callbacks.CallbackList):
            given.append(resumable)
        else:
            arguments["callbacks"] = [*callbacks, resumable]
        try:
            yield resumable
        finally:
            # Otherwise the next `fit` of this model would begin at this epoch too.
            model._initial_epoch = None
            resumable.drain()


class ResumableFit(keras.callbacks.Callback):
    """Restores the newest checkpoint when `fit` begins, and writes others."""

    # Keras dispatches only the hooks after a batch to another thread, and this callback
    # has none of them.
    async_safe = True
    # A checkpoint may begin between any two steps, but need not begin at each.
    follows_strides = True

    def __init__(
        self,
        options: Checkpoints,
        in_flight: InFlight,
        store: CheckpointStore,
        callbacks: list[keras.callbacks.Callback],
        epochs: int,
        termination: Termination,
    ) -> None:
        super().__init__()
        self._termination = termination
        self._options = options
        self._in_flight = in_flight
        self._store = store
        self._callbacks = callbacks
        self._progress = FitProgress(epochs)
        self._changes = Changes(callbacks, EXCLUDED_ATTRIBUTES)
        self._checkpoints: CheckpointWriter | None = None
        self._found: Iterator[Path] = iter(())
        self._first: Path | None = None
        self._restored: tuple[Path, Snapshot] | None = None
        self._epoch_begins = False

    def find_checkpoint(self) -> None:
        """Looks for a checkpoint before the other callbacks begin."""
        self._found = self._store.whole()
        # A generator: older ones are checked only if this one cannot be read.
        self._first = next(self._found, None)
        if self._first:
            append_to_logs(self._callbacks)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Restores the variables, the other callbacks and the initial epoch."""
        self._checkpoints = CheckpointWriter(
            self._options,
            self._in_flight,
            self._store,
            self.model,
            self._progress,
            self._changes,
        )
        rate = rate_of(self.model) if self._first else None
        self._restored = self._restore()
        if self._restored is None:
            return
        path, snapshot = self._restored
        restore_callbacks(self._callbacks, snapshot)
        epoch = first_epoch(path, snapshot, self._progress.epochs)
        if epoch < self._progress.epochs:
            tell_of_rate(self.model, rate)
        self.model._initial_epoch = self._progress.epochs_done = epoch

    def _restore(self) -> tuple[Path, Snapshot] | None:
        groups = groups_of(self.model)
        path, has_begun = self._first, False
        while path is not None:
            try:
                snapshot = Snapshot.read(path)
                check_model(path, snapshot, self.model)
                has_begun = True
                variables.read(path, **groups)
            # Before what follows: these are a ValueError and OpErrors, too.
            except (CheckpointMismatchError, *_LOST_PS_ERRORS):
                raise
            except tf.errors.InvalidArgumentError as error:
                # The file is intact, but a growing table is of another kind.
                raise CheckpointMismatchError(
                    f"the checkpoint {path} is of another model: {_said_by(error)}"
                ) from error
            except READ_ERRORS as error:
                self._store.skip(path, reason(str(error)).partition("\n")[0])
                path = next(self._found, None)
            else:
                return path, snapshot
        if self._store.has_corrupt:
            so_far = ", and some variables have been restored" if has_begun else ""
            raise CorruptCheckpointError(
                f"no checkpoint in {self._store.directory} can be read to its end"
                f"{so_far}: remove that directory to start from scratch"
            )
        return None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Restores the metrics in the middle of an epoch."""
        # Keras has just reset them, so `on_train_begin` would have been too early.
        self._epoch_begins = True
        if self._restored is not None:
            path, snapshot = self._restored
            if snapshot.position.step and not snapshot.finished:
                variables.read(path, metrics=groups_of(self.model)["metrics"])
        self._progress.epochs_done = epoch

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Yields the steps of an epoch, without those that ran before the checkpoint."""
        # `on_epoch_begin` precedes the training steps of an epoch. The steps of an
        # evaluation follow without it.
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
                # Traces what a checkpoint needs now, while all tasks respond.
                feed.state()
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
                "the workers read their endless dataset from the beginning again: "
                "checkpoints do not keep their positions in it"
            )
        elif position.batches:
            is_other = _is_other_data(snapshot, feed, self._progress.data_size)
            # Batches that were read already may have another shape than these, and are part
            # of the iterator's state too. Leases have none.
            fits = snapshot.is_by_lease or not is_other
            feed.start_at(
                position.batches,
                snapshot.data if fits else None,
                snapshot.put_back if fits else None,
                snapshot.is_by_lease,
            )
            # Keras opens the dataset anew if this count is 0, as in a new process.
            epoch_iterator._steps_seen += position.batches_before
        return position.step

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begins or writes a checkpoint if one is due; the last one after SIGTERM."""
        assert self._checkpoints
        if self._termination.requested:
            announce(
                "SIGTERM: saving fit at epoch %d of %d, step %d, and ending",
                self._progress.epochs_done + 1,
                self._progress.epochs,
                batch,
            )
            self._checkpoints.write_now(batch)
            self._termination.end()
        self._checkpoints.before_step(batch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Counts the epoch."""
        self._progress.epochs_done = epoch + 1

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Writes the last checkpoint, unless there was nothing left to do."""
        if self._progress.feed is not None:
            assert self._checkpoints
            self._checkpoints.at_end()

    def drain(self) -> None:
        """Waits a limited time for the checkpoint that is being written."""
        if self._checkpoints is not None:
            self._checkpoints.drain()


def _is_other_data(snapshot: Snapshot, feed: Feed, size: int) -> bool:
    """Returns True, and warns, if the checkpoint's positions do not fit this data."""
    is_known = snapshot.data_size >= 0 <= size
    if is_known and snapshot.data_size != size:
        changed = f"has {size:,} batches, and had {snapshot.data_size:,}"
    elif snapshot.data_files and feed.files and snapshot.data_files != feed.files:
        changed = "has files that were written again"
    else:
        return False
    _log.warning(
        "the dataset %s when the checkpoint was written, within an epoch: the rest of this "
        "epoch may leave out examples, or use some again. The next epoch uses each once",
        changed,
    )
    return True


def _said_by(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the text of an assertion, without TensorFlow's words around it."""
    found = re.search(r"assertion failed: \[(.*?)\] \[", error.message, re.DOTALL)
    return found[1] if found else reason(error.message).partition("\n")[0]
