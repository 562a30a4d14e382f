"""The checkpoints of a `fit`, which they do not hold up.

When one is due, it is noted how far `fit` is and what the callbacks know, and `fit` goes
on; once the steps up to there have finished, the variables are written, in the
background. For a step that takes long, as that of a worker which was stopped does,
nothing waits: its batch is put back. So a checkpoint has every step of its position, and
perhaps some that come after: those are run again.
"""

import dataclasses
import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.checkpoint import variables
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.background import BackgroundWriter
from tfdist.checkpoint.options import CheckpointOptions
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.parameter_server.fit.feed import Feed
from tfdist.parameter_server.fit.in_flight import InFlight

_log = logging.getLogger("tfdist")

# How long a checkpoint waits for the steps that were under way when it was due.
_SECONDS_FOR_STEPS = 2.0
# How long a fit that has failed waits for the checkpoint that is being written.
_SETTLE_SECONDS = 30.0


@dataclass
class Progress:
    """How far a `fit` is.

    Attributes:
        epochs: How many epochs it is asked for.
        epochs_done: How many have ended.
        epoch_iterator: Keras's, once the first step is known.
        feed: The batches of the iteration that it is in.
        batches_before: How many of them earlier epochs were given.
    """

    epochs: int
    epochs_done: int = 0
    epoch_iterator: Any = None
    feed: Feed | None = None
    batches_before: int = 0


def groups_of(model: Any) -> dict[str, list[Any]]:
    """The variables of a model and its optimizer, and those of its metrics."""
    metrics = model.metrics_variables
    those = {id(each) for each in metrics}
    every = [*model.variables, *model.optimizer.variables]
    rest = {id(each): each for each in every if id(each) not in those}
    return {"model": list(rest.values()), "metrics": list(metrics)}


def described(model: Any) -> list[Any]:
    """These variables, as a checkpoint describes them."""
    groups = groups_of(model)
    return variables.describe([*groups["model"], *groups["metrics"]])


class Checkpoints:
    """Writes a checkpoint whenever one is due.

    Args:
        options: Say how often.
        in_flight: The steps under way.
        store: Of this `fit`.
        model: In the scope of the strategy, and built.
        progress: Kept up to date by the caller.
        changes: What the callbacks know.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        in_flight: InFlight,
        store: CheckpointStore,
        model: Any,
        progress: Progress,
        changes: Changes,
    ) -> None:
        self._options = options
        self._in_flight = in_flight
        self._store = store
        self._model = model
        self._progress = progress
        self._changes = changes
        self._writer = BackgroundWriter()
        # TensorFlow makes what is traced known to every task, which may not answer later.
        self._write_variables = variables.VariableWriter(**groups_of(model))
        self._write_data = DataWriter()
        self._due: tuple[Snapshot, int] | None = None
        self._last = time.monotonic()

    def before_step(self, step: int) -> None:
        """Begins a checkpoint, if one is due, or has the one begun written."""
        waited = time.monotonic() - self._last
        if self._due is not None:
            snapshot, submitted = self._due
            late = self._in_flight.under_way(submitted)
            if not late or waited >= _SECONDS_FOR_STEPS:
                self._due = None
                self._write(self._put_back(snapshot, late))
        elif not self._writer.busy and waited >= self._options.interval:
            self._last = time.monotonic()
            progress = self._progress
            assert progress.feed
            position = Position(
                progress.epochs_done, step, progress.feed.read, progress.batches_before
            )
            self._due = self._snapshot(position), self._in_flight.submitted

    def _put_back(self, snapshot: Snapshot, late: list[Any]) -> Snapshot:
        """The snapshot without the steps of functions with these arguments."""
        if not late:
            return snapshot
        position = snapshot.position
        steps = len(late) * self._model.steps_per_execution
        position = dataclasses.replace(position, step=position.step - steps)
        assert self._progress.feed
        if self._progress.feed.worker_input is not None:
            # Only its worker knows which batches these are.
            return dataclasses.replace(snapshot, position=position)
        rows = [each.numpy() for each in late]
        if snapshot.put_back is not None:
            rows.append(snapshot.put_back)
        return dataclasses.replace(
            snapshot, position=position, put_back=np.concatenate(rows)
        )

    def at_end(self) -> None:
        """Writes the last checkpoint, and waits for it."""
        self._writer.wait()
        self._due = None
        progress = self._progress
        position = Position(progress.epochs_done)
        assert progress.feed
        goes_on = progress.epoch_iterator._current_iterator is progress.feed
        if goes_on and progress.epoch_iterator.steps_per_epoch:
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
        )

    def _write(self, snapshot: Snapshot) -> None:
        def write() -> None:
            with self._store.writing() as path:
                self._write_variables(path)
                snapshot.write(path, self._write_data)

        self._writer.start(write, f"a checkpoint in {self._store.directory}")

    def settle(self) -> None:
        """Waits for the checkpoint that is being written, but not for ever."""
        stalls = self._in_flight.stalls
        if not self._writer.wait(0.0 if stalls else _SETTLE_SECONDS):
            _log.warning("a checkpoint is still being written, and left behind")
