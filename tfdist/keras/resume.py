"""A `fit` that goes on where the process before has left off.

It is a callback behind all others, so it sees what they have made of a step. When a
checkpoint is due, it notes how far `fit` is and what the callbacks know, goes on, and
once the steps up to there have finished, has the variables written, in the background.
For a step that takes long, as that of a worker which was stopped does, it does not wait:
its batch is put back. So a checkpoint has every step of its position, and perhaps some
that come after: those are run again.
"""

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.background import BackgroundWriter
from tfdist.checkpoint.plain import from_json
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore, CorruptCheckpointError
from tfdist.keras.feed import Feed
from tfdist.keras.step_error import reason

if TYPE_CHECKING:
    from tfdist.parameter_server.strategy import ParameterServerStrategy

_log = logging.getLogger("tfdist")

# How long a checkpoint waits for the steps that were under way when it was due.
_SECONDS_FOR_STEPS = 2.0
# How long a fit that has failed waits for the checkpoint that is being written.
_SETTLE_SECONDS = 30.0
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


def fit_resumably(
    keras_fit: Callable[..., Any], model: Any, args: Any, kwargs: Any
) -> Any:
    """Calls `fit`, from its newest checkpoint on.

    The n-th `fit` of a program has the n-th directory. One that had ended returns at
    once, with its variables and its history.

    Args:
        keras_fit: Keras's own.
        model: In the scope of a strategy with a `checkpoint_dir`.
        args: Of `fit`.
        kwargs: Of `fit`.
    """
    strategy = model.distribute_strategy
    bound = inspect.signature(keras_fit).bind(model, *args, **kwargs).arguments
    del bound["self"]
    directory = Path(strategy.checkpoint_dir, f"fit-{strategy.next_fit():03d}")
    with CheckpointStore(directory, strategy.checkpoints_to_keep) as store:
        callbacks = _with_history(bound.get("callbacks"))
        resumable = ResumableFit(strategy, store, callbacks, bound.get("epochs", 1))
        resumable.find_checkpoint()
        given = bound.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            given.append(resumable)
        else:
            bound["callbacks"] = [*callbacks, resumable]
        strategy.resumable_fit = resumable
        try:
            return keras_fit(model, **bound)
        finally:
            strategy.resumable_fit = None
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
        strategy: Says how often.
        store: Of this `fit`.
        callbacks: The others, which come before this one.
        epochs: How many `fit` is asked for.
    """

    # Its hooks before a batch are never called by another thread.
    async_safe = True

    def __init__(
        self,
        strategy: "ParameterServerStrategy",
        store: CheckpointStore,
        callbacks: list[Any],
        epochs: int,
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._store = store
        self._callbacks = callbacks
        self._epochs = epochs
        self._changes = Changes(callbacks, _NOT_ITS_STATE)
        self._writer = BackgroundWriter()
        self._write_variables: variables.VariableWriter | None = None
        self._write_data: DataWriter | None = None
        self._found: Iterator[Path] = iter(())
        self._first: Path | None = None
        self._restored: tuple[Path, Snapshot] | None = None
        self._due: tuple[Snapshot, int] | None = None
        self._last = time.monotonic()
        self._epoch_begins = False
        self._epochs_done = 0
        self._iterator: Any = None
        self._feed: Any = None
        self._batches_before = 0

    # Resuming.

    def find_checkpoint(self) -> None:
        """Looks for a checkpoint, before other callbacks begin."""
        self._found = self._store.whole()
        self._first = next(self._found, None)
        for each in self._callbacks:
            if self._first and isinstance(each, keras.callbacks.CSVLogger):
                each.append = True  # It would begin its file anew.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the variables, the other callbacks and the first epoch."""
        # TensorFlow makes what is traced known to every task, which may not answer later.
        self._write_variables = variables.VariableWriter(**self._groups())
        self._write_data = DataWriter()
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
        at_end = snapshot.finished and snapshot.epochs >= self._epochs
        epoch = self._epochs if at_end else position.epoch
        self.model._initial_epoch = self._epochs_done = epoch
        if epoch >= self._epochs:
            _log.warning(
                "fit has nothing left to do: %s is %s, and %d are asked for",
                path,
                f"the end of {snapshot.epochs} epochs"
                if at_end
                else f"of epoch {epoch}",
                self._epochs,
            )
        else:
            _log.warning(
                "fit goes on from %s: epoch %d of %d, step %d",
                path,
                epoch + 1,
                self._epochs,
                position.step,
            )

    def _restore(self) -> tuple[Path, Snapshot] | None:
        groups = self._groups()
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
        differs = variables.difference(snapshot.variables, self._described())
        if differs:
            raise CheckpointMismatchError(
                f"{path} is not of this model: it has {differs}. Name another "
                "checkpoint_dir, or remove that one to begin anew"
            )

    def _groups(self) -> dict[str, list[Any]]:
        metrics = self.model.metrics_variables
        every = [*self.model.variables, *self.model.optimizer.variables]
        those = {id(each) for each in metrics}
        rest = {id(each): each for each in every if id(each) not in those}
        return {"model": list(rest.values()), "metrics": list(metrics)}

    def _described(self) -> list[Any]:
        groups = self._groups()
        return variables.describe([*groups["model"], *groups["metrics"]])

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics, which Keras has just reset."""
        self._epoch_begins = True
        if self._restored is not None:
            path, snapshot = self._restored
            if snapshot.position.step and not snapshot.finished:
                variables.read(path, metrics=self._groups()["metrics"])
        self._epochs_done = epoch

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
        self._iterator, self._feed = epoch_iterator, None
        first_step = 0
        for begin, end, feed in steps:
            if feed is not self._feed:
                self._feed = feed
                first_step = self._start_at(epoch_iterator, feed)
                feed.state()  # This is traced beforehand, too.
            if begin >= first_step:
                yield begin, end, feed

    def _start_at(self, epoch_iterator: Any, feed: Feed) -> int:
        restored, self._restored = self._restored, None
        if restored is None:
            self._batches_before = feed.taken
            return 0
        _, snapshot = restored
        position = snapshot.position
        self._batches_before = position.batches_before
        if feed.worker_input is not None:
            _log.warning(
                "the workers read their endless dataset from its beginning again"
            )
        elif position.batches:
            feed.start_at(position.batches, snapshot.data, snapshot.put_back)
            epoch_iterator._steps_seen += position.batches_before
        return position.step

    # Checkpoints.

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Has a checkpoint written, if one is due."""
        in_flight = self._strategy.in_flight
        waited = time.monotonic() - self._last
        if self._due is not None:
            snapshot, submitted = self._due
            late = in_flight.under_way(submitted)
            if not late or waited >= _SECONDS_FOR_STEPS:
                self._due = None
                self._write(self._put_back(snapshot, late))
        elif not self._writer.busy and waited >= self._strategy.checkpoint_interval:
            self._last = time.monotonic()
            position = Position(
                self._epochs_done, batch, self._feed.read, self._batches_before
            )
            self._due = self._snapshot(position), in_flight.submitted

    def _put_back(self, snapshot: Snapshot, late: list[Any]) -> Snapshot:
        """The snapshot without the steps of functions with these arguments."""
        if not late:
            return snapshot
        position = snapshot.position
        steps = len(late) * self.model.steps_per_execution
        position = dataclasses.replace(position, step=position.step - steps)
        if self._feed.worker_input is not None:
            # Only its worker knows which batches these are.
            return dataclasses.replace(snapshot, position=position)
        rows = [each.numpy() for each in late]
        if snapshot.put_back is not None:
            rows.append(snapshot.put_back)
        return dataclasses.replace(
            snapshot, position=position, put_back=np.concatenate(rows)
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the epoch."""
        self._epochs_done = epoch + 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the last checkpoint, and waits for it."""
        if self._feed is None:
            return  # There was nothing left to do.
        self._writer.wait()
        self._due = None
        goes_on = self._iterator._current_iterator is self._feed
        goes_on = goes_on and bool(self._iterator.steps_per_epoch)
        position = Position(self._epochs_done)
        if goes_on:
            position = dataclasses.replace(
                position, batches=self._feed.read, batches_before=self._feed.taken
            )
        self._write(self._snapshot(position, finished=True))
        self._writer.wait()

    def _snapshot(self, position: Position, finished: bool = False) -> Snapshot:
        arrays: dict[str, Any] = {}
        ahead = self._feed.ahead if position.batches else []
        return Snapshot(
            position,
            self._epochs,
            finished,
            self._changes.state(arrays),
            self._described(),
            arrays,
            self._feed.state() if position.batches else None,
            np.concatenate([row.numpy() for row in ahead]) if ahead else None,
        )

    def _write(self, snapshot: Snapshot) -> None:
        assert self._write_variables
        assert self._write_data
        write_variables, write_data = self._write_variables, self._write_data

        def write() -> None:
            with self._store.writing() as path:
                write_variables(path)
                snapshot.write(path, write_data)

        self._writer.start(write, f"a checkpoint in {self._store.directory}")

    def settle(self) -> None:
        """Waits for the checkpoint that is being written, but not for ever."""
        stalls = self._strategy.in_flight.stalls
        if not self._writer.wait(0.0 if stalls else _SETTLE_SECONDS):
            _log.warning("a checkpoint is still being written, and left behind")
