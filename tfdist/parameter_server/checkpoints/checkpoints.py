"""The checkpoints of a `fit`: each is a consistent cut.

When a checkpoint is due, no further step is sent until those in flight have finished and
each ps has read its variables. Then `fit` continues, and what was read is written in the
background. A step that takes much longer, as on a stopped worker, is not waited for: its
batch is put back, and runs again after a restart.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.background import DRAIN_SECONDS, BackgroundWriter
from tfdist.checkpoint.continued_fit import FitProgress
from tfdist.checkpoint.fit_state import described, groups_of
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.settings import Checkpoints
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.steps.in_flight import InFlight

# The time that a checkpoint waits until one of the steps in flight finishes; at
# SIGTERM, until all have. The batches of slower steps are put back. A worker may need
# seconds for the first message of a new number of steps.
_SECONDS_FOR_A_STEP = 10.0
_SECONDS_FOR_STEPS = 2.0
_SECONDS_FOR_A_LOOK = 0.05  # At what else may have ended a wait for the ps.


def data_size(progress: FitProgress) -> int:
    """Returns the number of batches of an epoch's data; negative if not known."""
    size: int = progress.data.size
    # Keras reads arrays by a dataset that does not say how long it is.
    return max(size, progress.epoch_iterator.data_adapter.num_batches or size)


@dataclass(eq=False)
class CheckpointWriter:
    """Writes a checkpoint whenever one is due."""

    options: Checkpoints
    in_flight: InFlight
    store: CheckpointStore
    model: keras.Model
    progress: FitProgress
    changes: Changes

    def __post_init__(self) -> None:
        self._submitted_before = self.in_flight.submitted
        self._writer = BackgroundWriter()
        # Trace now: TensorFlow registers every traced function with every task and
        # waits for the answers. A task that stops responding later would block a
        # checkpoint.
        self._write_variables = variables.VariableWriter(**groups_of(self.model))
        self._write_data = DataWriter()
        self._last = time.monotonic()

    def before_step(self, step: int) -> None:
        """Writes a checkpoint if one is due."""
        waited = time.monotonic() - self._last
        if not self._writer.busy and waited >= self.options.every:
            self.in_flight.wait(_SECONDS_FOR_A_STEP, renewed=True)
            self._cut(step)

    def write_now(self, step: int) -> None:
        """Writes a checkpoint and waits for it: no further step will run."""
        self._writer.wait()
        self.in_flight.wait(_SECONDS_FOR_STEPS)
        self._cut(step)
        self._writer.wait()

    def _cut(self, step: int) -> None:
        """Writes a checkpoint of all that has finished before a step."""
        self._last = time.monotonic()
        now = self.progress
        position = Position(now.epochs_done, step, now.data.read, now.batches_before)
        # Without those of an earlier `fit`, whose batches are not of this data.
        late = self.in_flight.under_way(self._submitted_before)
        self._write(self._put_back(self._snapshot(position), late))

    def _put_back(self, snapshot: Snapshot, late: list[tuple[Any, int]]) -> Snapshot:
        """Returns the snapshot with the batches of late functions put back."""
        if not late:
            return snapshot
        position = snapshot.position
        steps = sum(steps for _, steps in late)
        position = dataclasses.replace(position, step=position.step - steps)
        if self.progress.data.worker_input is not None:
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
        position = self.progress.end(self.progress.data.read)
        self._write(self._snapshot(position, finished=True))
        self._writer.wait()

    def _snapshot(self, position: Position, finished: bool = False) -> Snapshot:
        feed: Feed = self.progress.data
        arrays: dict[str, Any] = {}
        ahead = feed.ahead if position.batches else []
        return Snapshot(
            position,
            self.progress.epochs,
            finished,
            self.changes.state(arrays),
            described(self.model),
            arrays,
            feed.state() if position.batches else None,
            np.concatenate([row.numpy() for row in ahead]) if ahead else None,
            feed.is_by_lease,
            data_size(self.progress),
            feed.files,
        )

    def _write(self, snapshot: Snapshot) -> None:
        """Begins to write, and returns once the ps have read their variables."""

        def write() -> None:
            with self.store.writing() as path:
                self._write_variables(path)
                snapshot.write(path, self._write_data)

        has_read = self._write_variables.has_read
        # Before the writer starts, which sets it.
        has_read.clear()
        self._writer.start(write, f"a checkpoint in {self.store.directory}")
        with self.in_flight.waiting():
            while not has_read.wait(_SECONDS_FOR_A_LOOK) and self._writer.busy:
                self.in_flight.check()

    def drain(self) -> None:
        """Waits a limited time for the checkpoint that is being written."""
        # In a stall, the ps that writes may be the task that does not respond.
        self._writer.drain(0.0 if self.in_flight.stalls else DRAIN_SECONDS)
