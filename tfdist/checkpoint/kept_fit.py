"""Continues a `fit` at its step, where all replicas take each step together.

Between two steps every variable has the state after whole steps, so nothing has to be waited
for. One process reads and writes the checkpoints, and tells the others.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Logs
from tfdist.checkpoint.background import BackgroundWriter
from tfdist.checkpoint.continued_fit import ContinuedFit
from tfdist.checkpoint.fit_state import (
    READ_ERRORS,
    append_to_logs,
    check_model,
    described,
    groups_of,
    rate_of,
)
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.settings import Checkpoints

_VALUES, _METRIC = "values.npz", "metric-"
# The interval at which processes ask each other whether a checkpoint is due.
_SECONDS_BETWEEN_QUESTIONS = 1.0


class Group(Protocol):
    """The processes that run the script, each of which calls these at the same steps."""

    is_chief: bool

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the integers of each process, a row for each."""

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the value that the chief has passed."""


@contextlib.contextmanager
def told_if_not_kept(directory: str | os.PathLike[str] | None) -> Iterator[None]:
    """Surrounds a call; tells who interrupts it if there are no checkpoints."""
    try:
        yield
    except KeyboardInterrupt as error:
        if directory is None and not error.args:
            error.args = (
                "no checkpoint was kept; the launcher's --checkpoint_dir keeps some",
            )
        raise


class KeptFit(ContinuedFit):
    """Restores the newest checkpoint when `fit` begins, and writes others.

    It comes after the callbacks whose state it keeps. A process that does not write has
    no store. `join` waits for the steps that are in flight.
    """

    def __init__(
        self,
        options: Checkpoints,
        store: CheckpointStore | None,
        group: Group,
        callbacks: list[keras.callbacks.Callback],
        epochs: int,
        join: Callable[[], None],
    ) -> None:
        super().__init__(options, callbacks, epochs)
        self._store = store
        self._group = group
        self._join = join
        self._writer = BackgroundWriter()
        self._values: list[np.ndarray] = []
        self._is_data_given = False
        self._last = self._asked = time.monotonic()
        self._calls, self._ask_at = 0, 1

    def find(self) -> None:
        """Looks for a checkpoint, before the data is opened and callbacks begin."""
        packed = self._read() if self._store else b""
        if packed := self._group.bytes_of_chief(packed):
            where, _, rest = packed.partition(b"\n")
            self._where = where.decode()
            if self._found is None:
                self._found = Snapshot.unpacked(rest)
            append_to_logs(self._callbacks)

    def _read(self) -> bytes:
        """Reads the newest intact checkpoint, and returns the others' part of it."""
        assert self._store
        for path in self._store.whole():
            try:
                self._found = Snapshot.read(path)
                with np.load(path / _VALUES, allow_pickle=False) as values:
                    self._values = [values[each] for each in values.files]
                return b"\n".join([str(path).encode(), Snapshot.packed(path)])
            except READ_ERRORS as error:
                self._found = None
                self._store.skip(path, str(error).partition("\n")[0])
        self._store.check_readable()
        return b""

    def start_of_data(self) -> Snapshot | None:
        """Returns where the data of `fit` begins; None for other data, or its beginning."""
        # Keras opens that of `fit` first.
        is_given, self._is_data_given = self._is_data_given, True
        return None if is_given else self._found

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Restores the variables, the other callbacks and the initial epoch."""
        self._write_data = DataWriter()
        self._last = self._asked = time.monotonic()
        if self._found is None:
            return
        check_model(self._where, self._found, self.model)
        rate = rate_of(self.model)
        # The other processes get these from the chief, as at every start.
        for variable, value in zip(
            groups_of(self.model)["model"], self._values, strict=bool(self._values)
        ):
            variable.assign(_as(variable, value))
        self._values = []
        self._continue(self._found, rate)

    def _restore_metrics(self, found: Snapshot) -> None:
        for i, variable in enumerate(groups_of(self.model)["metrics"]):
            value = _as(variable, found.arrays[f"{_METRIC}{i}"])
            copies = self.model.distribute_strategy.experimental_local_results(
                variable.value
            )
            # A sum over all replicas is given to one of them.
            is_sum = variable.aggregation == "sum"
            for j, copy in enumerate(copies):
                has_it = not is_sum or (self._group.is_chief and not j)
                copy.assign(value if has_it else np.zeros_like(value))

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begins to write a checkpoint if one is due."""
        if self._is_due(batch):
            self._join()
            now = self._progress
            self._write(
                Position(now.epochs_done, batch, now.data.taken, now.batches_before)
            )

    def _is_due(self, batch: int) -> bool:
        """Returns True if a checkpoint is due; all processes agree on the step.

        Cost: a message of 8 bytes per process, each second and at the start of each epoch.
        """
        self._calls += 1
        # The end of an epoch may have taken longer than its steps, which say when to ask.
        if self._calls < self._ask_at and batch:
            return False
        now = time.monotonic()
        left = self._options.every - (now - self._last)
        calls = 0
        if left > 0 or self._writer.busy:
            seconds = min(max(left, 0.0), _SECONDS_BETWEEN_QUESTIONS)
            each = max(now - self._asked, 1e-6) / self._calls
            calls = max(int(seconds / each), 1)
        # The chief's answer counts: it writes.
        calls = int(self._group.gather_numbers([calls])[0, 0])
        self._calls, self._ask_at, self._asked = 0, max(calls, 1), now
        return not calls

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Writes the last checkpoint, unless there was nothing left to do."""
        if self._progress.data is None:
            return
        self._join()
        self._writer.wait()
        self._write(self._progress.end(self._progress.data.taken), finished=True)
        self._writer.wait()

    def _write(self, position: Position, finished: bool = False) -> None:
        """Reads the state of `fit`, and begins to write it."""
        groups, data = groups_of(self.model), self._progress.data
        # Each process reads them: a metric is a sum over all of them.
        metrics = [np.asarray(each.numpy()) for each in groups["metrics"]]
        self._last = time.monotonic()
        if (store := self._store) is None:
            return
        values = [_raw(np.asarray(each.numpy())) for each in groups["model"]]
        arrays = {f"{_METRIC}{i}": _raw(each) for i, each in enumerate(metrics)}
        snapshot = Snapshot(
            position,
            self._progress.epochs,
            finished,
            self._changes.state(arrays),
            described(self.model),
            arrays,
            data.state() if position.batches else None,
            seed=data.seed,
            iterations=data.iterations,
        )

        def write() -> None:
            with store.writing() as path:
                np.savez(path / _VALUES, *values)
                snapshot.write(path, self._write_data)

        self._writer.start(write, f"a checkpoint in {store.directory}")

    def drain(self) -> None:
        """Waits a limited time for the checkpoint that is being written."""
        self._writer.drain()


def _raw(value: np.ndarray) -> np.ndarray:
    # A file of NumPy would lose the dtype of bfloat16.
    return np.frombuffer(value.tobytes(), np.uint8)


def _as(variable: Any, value: np.ndarray) -> np.ndarray:
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    return value.view(dtype).reshape(variable.shape)
