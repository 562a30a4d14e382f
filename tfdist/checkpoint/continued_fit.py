"""The part of continuing a `fit` from a checkpoint that all strategies have in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tfdist._support.types import Logs
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.fit_state import (
    EXCLUDED_ATTRIBUTES,
    first_epoch,
    restore_callbacks,
    tell_of_rate,
)
from tfdist.checkpoint.snapshot import Position, Snapshot
from tfdist.cluster.settings import Checkpoints


@dataclass
class FitProgress:
    """The progress of a `fit`.

    Attributes:
        epochs: The number of epochs requested.
        epochs_done: The number of epochs completed.
        epoch_iterator: Keras's epoch iterator; None before the first step.
        data: The current iteration over the dataset.
        batches_before: How many batches of this iteration earlier epochs used.
    """

    epochs: int
    epochs_done: int = 0
    epoch_iterator: Any = None
    data: Any = None
    batches_before: int = 0

    def end(self, batches: int) -> Position:
        """Returns the position at the end of `fit`, of whose data so many were read."""
        # With `steps_per_epoch`, a later `fit` of more epochs continues in the middle
        # of the dataset. Keras drops the iterator once the dataset has ended.
        is_mid_dataset = self.epoch_iterator._current_iterator is self.data
        if is_mid_dataset and self.epoch_iterator.steps_per_epoch:
            taken = self.data.taken
            return Position(self.epochs_done, batches=batches, batches_before=taken)
        return Position(self.epochs_done)


class ContinuedFit(keras.callbacks.Callback):
    """Continues a `fit` where a checkpoint left off; derived classes read and write it."""

    # Keras dispatches only the hooks after a batch to another thread, and this callback
    # has none of them.
    async_safe = True
    # A checkpoint may begin between any two steps, but need not begin at each.
    follows_strides = True

    def __init__(
        self,
        options: Checkpoints,
        callbacks: list[keras.callbacks.Callback],
        epochs: int,
    ) -> None:
        super().__init__()
        self._options = options
        self._callbacks = callbacks
        self._progress = FitProgress(epochs)
        # Before `fit` begins, while callbacks have nothing but their settings.
        self._changes = Changes(callbacks, EXCLUDED_ATTRIBUTES)
        self._where: str | Path = ""
        self._found: Snapshot | None = None
        self._epoch_begins = False

    def _continue(self, found: Snapshot, rate: float | None) -> None:
        """Restores the other callbacks and the initial epoch; `rate` is the script's."""
        restore_callbacks(self._callbacks, found)
        epoch = first_epoch(self._where, found, self._progress.epochs)
        if epoch < self._progress.epochs:
            tell_of_rate(self.model, rate)
        # Keras's `fit` reads this after `on_train_begin`, in place of its argument.
        self.model._initial_epoch = self._progress.epochs_done = epoch

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Restores the metrics in the middle of an epoch."""
        # Keras has just reset them, so `on_train_begin` would have been too early.
        self._progress.epochs_done, self._epoch_begins = epoch, True
        found = self._found
        if found is not None and found.position.step and not found.finished:
            self._restore_metrics(found)

    def _restore_metrics(self, found: Snapshot) -> None:
        raise NotImplementedError

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Counts the epoch."""
        self._progress.epochs_done = epoch + 1

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Yields the steps of an epoch, without those that ran before the checkpoint."""
        # `on_epoch_begin` precedes the training steps of an epoch. The steps of an
        # evaluation follow without it.
        if not self._epoch_begins:
            yield from steps
            return
        self._epoch_begins = False
        progress, first_step = self._progress, 0
        progress.epoch_iterator, progress.data = epoch_iterator, None
        for begin, end, data in steps:
            if data is not progress.data:
                progress.data = data
                first_step = self._start_at(epoch_iterator, data)
            if begin >= first_step:
                yield begin, end, data

    def _start_at(self, epoch_iterator: Any, data: Any) -> int:
        found, self._found = self._found, None
        if found is None:
            self._progress.batches_before = data.taken
            return 0
        before = self._progress.batches_before = found.position.batches_before
        if self._resumes(found, data):
            # Keras opens the dataset anew if this count is 0, as in a new process.
            epoch_iterator._steps_seen += before
        return found.position.step

    def _resumes(self, found: Snapshot, data: Any) -> bool:
        """Returns True if the data begins where a checkpoint left off."""
        return True
