"""The checkpoints of a `fit`: each is a consistent cut.

When a checkpoint is due, no further step is sent until those in flight have finished and
each ps has read its variables. Then `fit` continues, and what was read is written in the
background. A step that takes much longer, as on a stopped worker, is not waited for: its
batch is put back, and runs again after a restart.
"""

import dataclasses
import logging
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.background import BackgroundWriter
from tfdist.checkpoint.fit_state import described, groups_of
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.settings import Checkpoints
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.steps.in_flight import InFlight

_log = logging.getLogger("tfdist")

# The time that a checkpoint waits until one of the steps in flight finishes; at
# SIGTERM, until all have. The batches of slower steps are put back. A worker may need
# seconds for the first message of a new number of steps.
_SECONDS_FOR_A_STEP = 10.0
_SECONDS_FOR_STEPS = 2.0
_SECONDS_FOR_A_LOOK = 0.05  # At what else may have ended a wait for the ps.
# How long a failed `fit` waits for the checkpoint that is being written.
_DRAIN_SECONDS = 30.0


@dataclass
class FitProgress:
    """The progress of a `fit`.

    Attributes:
        epochs: The number of epochs requested.
        epochs_done: The number of epochs completed.
        epoch_iterator: Keras's epoch iterator; None before the first step.
        feed: The batches of the current iteration over the dataset.
        batches_before: How many batches of this iteration earlier epochs used.
    """

    epochs: int
    epochs_done: int = 0
    epoch_iterator: Any = None
    feed: Feed | None = None
    batches_before: int = 0

    @property
    def data_size(self) -> int:
        """The number of batches of an epoch's data; negative if not known."""
        assert self.feed
        # Keras reads arrays by a dataset that does not say how long it is.
        return max(
            self.feed.size,
            self.epoch_iterator.data_adapter.num_batches or self.feed.size,
        )


class CheckpointWriter:
    """Writes a checkpoint whenever one is due."""

    def __init__(
        self,
        options: Checkpoints,
        in_flight: InFlight,
        store: CheckpointStore,
        model: keras.Model,
        progress: FitProgress,
        changes: Changes,
    ) -> None:
        self._options = options
        self._in_flight = in_flight
        self._submitted_before = in_flight.submitted
        self._store = store
        self._model = model
        self._progress = progress
        self._changes = changes
        self._writer = BackgroundWriter()
        # Trace now: TensorFlow registers every traced function with every task and
        # waits for the answers. A task that stops responding later would block a
        # checkpoint.
        self._write_variables = variables.VariableWriter(**groups_of(model))
        self._write_data = DataWriter()
        self._last = time.monotonic()

    def before_step(self, step: int) -> None:
        """Writes a checkpoint if one is due."""
        waited = time.monotonic() - self._last
        if not self._writer.busy and waited >= self._options.every:
            self._in_flight.wait(_SECONDS_FOR_A_STEP, renewed=True)
            self._cut(step)

    def write_now(self, step: int) -> None:
        """Writes a checkpoint and waits for it: no further step will run."""
        self._writer.wait()
        self._in_flight.wait(_SECONDS_FOR_STEPS)
        self._cut(step)
        self._writer.wait()

    def _cut(self, step: int) -> None:
        """Writes a checkpoint of all that has finished before a step."""
        self._last = time.monotonic()
        progress = self._progress
        assert progress.feed
        position = Position(
            progress.epochs_done, step, progress.feed.read, progress.batches_before
        )
        # Without those of an earlier `fit`, whose batches are not of this data.
        late = self._in_flight.under_way(self._submitted_before)
        self._write(self._put_back(self._snapshot(position), late))

    def _put_back(self, snapshot: Snapshot, late: list[tuple[Any, int]]) -> Snapshot:
        """Returns the snapshot with the batches of late functions put back."""
        if not late:
            return snapshot
        position = snapshot.position
        steps = sum(steps for _, steps in late)
        position = dataclasses.replace(position, step=position.step - steps)
        assert self._progress.feed
        if self._progress.feed.worker_input is not None:
            # The worker read these batches itself, so the chief does not have them.
            return dataclasses.replace(snapshot, position=position)
        # Late ones first: they were taken before what has only been read ahead.
        rows = [argument.numpy() for argument, _ in late]
        if snapshot.put_back is not None:
            rows.append(snapshot.put_back)
        return dataclasses.replace(
            snapshot, position=position, put_back=np.concatenate(rows)
        )

    def at_end(self) -> None:
        """Writes the last checkpoint, and waits for it."""
        self._writer.wait()
        progress = self._progress
        position = Position(progress.epochs_done)
        assert progress.feed
        # With `steps_per_epoch`, a later `fit` of more epochs continues in the middle
        # of the dataset. Keras drops the iterator once the dataset has ended.
        is_mid_dataset = progress.epoch_iterator._current_iterator is progress.feed
        if is_mid_dataset and progress.epoch_iterator.steps_per_epoch:
            position = dataclasses.replace(
                position,
                batches=progress.feed.read,
                batches_before=progress.feed.taken,
            )
        self._write(self._snapshot(position, finished=True))
        self._writer.wait()

    def _snapshot(self, position: Position, finished: bool = False) -> Snapshot:
        feed = self._progress.feed
        assert feed
        arrays: dict[str, Any] = {}
        ahead = feed.ahead if position.batches else []
        return Snapshot(
            position,
            self._progress.epochs,
            finished,
            self._changes.state(arrays),
            described(self._model),
            arrays,
            feed.state() if position.batches else None,
            np.concatenate([row.numpy() for row in ahead]) if ahead else None,
            feed.is_by_lease,
            self._progress.data_size,
            feed.files,
        )

    def _write(self, snapshot: Snapshot) -> None:
        """Begins to write, and returns once the ps have read their variables."""

        def write() -> None:
            with self._store.writing() as path:
                self._write_variables(path)
                snapshot.write(path, self._write_data)

        has_read = self._write_variables.has_read
        # Before the writer starts, which sets it.
        has_read.clear()
        self._writer.start(write, f"a checkpoint in {self._store.directory}")
        with self._in_flight.waiting():
            while not has_read.wait(_SECONDS_FOR_A_LOOK) and self._writer.busy:
                self._in_flight.check()

    def drain(self) -> None:
        """Waits a limited time for the checkpoint that is being written."""
        # In a stall, the ps that writes may be the task that does not respond.
        stalls = self._in_flight.stalls
        if not self._writer.wait(0.0 if stalls else _DRAIN_SECONDS):
            _log.warning("abandoned a checkpoint that was still being written")
