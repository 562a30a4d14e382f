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
from tfdist.checkpoint.continued_fit import ContinuedFit
from tfdist.checkpoint.fit_state import (
    READ_ERRORS,
    CheckpointMismatchError,
    announce,
    append_to_logs,
    check_model,
    groups_of,
    rate_of,
    with_history,
)
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.liveness.step_error import reason
from tfdist.cluster.settings import Checkpoints
from tfdist.parameter_server.checkpoints.checkpoints import (
    CheckpointWriter,
    data_size,
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


class ResumableFit(ContinuedFit):
    """Restores the newest checkpoint when `fit` begins, and writes others."""

    def __init__(
        self,
        options: Checkpoints,
        in_flight: InFlight,
        store: CheckpointStore,
        callbacks: list[keras.callbacks.Callback],
        epochs: int,
        termination: Termination,
    ) -> None:
        super().__init__(options, callbacks, epochs)
        self._termination = termination
        self._in_flight = in_flight
        self._store = store
        self._checkpoints: CheckpointWriter | None = None
        self._paths: Iterator[Path] = iter(())
        self._first: Path | None = None

    def find_checkpoint(self) -> None:
        """Looks for a checkpoint before the other callbacks begin."""
        self._paths = self._store.whole()
        # A generator: older ones are checked only if this one cannot be read.
        self._first = next(self._paths, None)
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
        self._found = self._restore()
        if self._found is not None:
            self._continue(self._found, rate)

    def _restore(self) -> Snapshot | None:
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
                path = next(self._paths, None)
            else:
                self._where = path
                return snapshot
        self._store.check_readable(
            ", and some variables have been restored" if has_begun else ""
        )
        return None

    def _restore_metrics(self, found: Snapshot) -> None:
        metrics = groups_of(self.model)["metrics"]
        variables.read(Path(self._where), metrics=metrics)

    def _start_at(self, epoch_iterator: Any, data: Any) -> int:
        step = super()._start_at(epoch_iterator, data)
        # Traces what a checkpoint needs now, while all tasks respond.
        data.state()
        return step

    def _resumes(self, found: Snapshot, data: Any) -> bool:
        feed: Feed = data
        if feed.worker_input is not None:
            _log.warning(
                "the workers read their endless dataset from the beginning again: "
                "checkpoints do not keep their positions in it"
            )
        elif found.position.batches:
            is_other = _is_other_data(found, feed, data_size(self._progress))
            # Batches that were read already may have another shape than these, and are part
            # of the iterator's state too. Leases have none.
            fits = found.is_by_lease or not is_other
            feed.start_at(
                found.position.batches,
                found.data if fits else None,
                found.put_back if fits else None,
                found.is_by_lease,
            )
        return feed.worker_input is None

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

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Writes the last checkpoint, unless there was nothing left to do."""
        if self._progress.data is not None:
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
