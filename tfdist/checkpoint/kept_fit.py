"""Continues a `fit` at its step, where all replicas take each step together.

Between two steps every variable has the state after whole steps, so nothing has to be waited
for. One process reads and writes the checkpoints, and tells the others.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Logs
from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.background import BackgroundWriter
from tfdist.checkpoint.fit_state import (
    EXCLUDED_ATTRIBUTES,
    READ_ERRORS,
    append_to_logs,
    check_model,
    described,
    first_epoch,
    groups_of,
    rate_of,
    restore_callbacks,
    tell_of_rate,
)
from tfdist.checkpoint.snapshot import DataWriter, Position, Snapshot
from tfdist.checkpoint.store import CheckpointStore, CorruptCheckpointError
from tfdist.cluster.settings import Checkpoints

_log = logging.getLogger("tfdist")

_VALUES, _METRIC = "values.npz", "metric-"
# The interval at which processes ask each other whether a checkpoint is due.
_SECONDS_BETWEEN_QUESTIONS = 1.0
_DRAIN_SECONDS = 30.0


class Group(Protocol):
    """The processes that run the script, each of which calls these at the same steps."""

    is_chief: bool

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the integers of each process, a row for each."""
        ...

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the value that the chief has passed."""
        ...


class OneProcess:
    """The group of a script that one process runs."""

    is_chief = True

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns this process's integers."""
        return np.array([numbers], np.int64)

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the data."""
        return data


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


class KeptFit(keras.callbacks.Callback):
    """Restores the newest checkpoint when `fit` begins, and writes others.

    It comes after the callbacks whose state it keeps. A process that does not write has
    no store. `join` waits for the steps that are in flight.
    """

    async_safe = True
    # A checkpoint may begin between any two steps, but need not begin at each.
    follows_strides = True

    def __init__(
        self,
        options: Checkpoints,
        store: CheckpointStore | None,
        group: Group,
        callbacks: list[keras.callbacks.Callback],
        epochs: int,
        join: Callable[[], None],
    ) -> None:
        super().__init__()
        self._options = options
        self._store = store
        self._group = group
        self._callbacks = callbacks
        self._epochs = epochs
        self._join = join
        # Before `fit` begins, while callbacks have nothing but their settings.
        self._changes = Changes(callbacks, EXCLUDED_ATTRIBUTES)
        self._writer = BackgroundWriter()
        self._where = ""
        self._values: list[np.ndarray] = []
        self._found: Snapshot | None = None
        self._is_data_given = False
        self._epoch = 0
        self._epoch_begins = False
        self._epoch_iterator: Any = None
        self._data: Any = None
        self._batches_before = 0
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
        if self._store.has_corrupt:
            raise CorruptCheckpointError(
                f"no checkpoint in {self._store.directory} can be read to its end: remove "
                "that directory to start from scratch"
            )
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
        restore_callbacks(self._callbacks, self._found)
        epoch = first_epoch(self._where, self._found, self._epochs)
        if epoch < self._epochs:
            tell_of_rate(self.model, rate)
        # Keras's `fit` reads this after `on_train_begin`, in place of its argument.
        self.model._initial_epoch = self._epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Restores the metrics in the middle of an epoch."""
        # Keras has just reset them, so `on_train_begin` would have been too early.
        self._epoch, self._epoch_begins = epoch, True
        if self._found is None or self._found.finished or not self._found.position.step:
            return
        for i, variable in enumerate(groups_of(self.model)["metrics"]):
            value = _as(variable, self._found.arrays[f"{_METRIC}{i}"])
            copies = self.model.distribute_strategy.experimental_local_results(
                variable.value
            )
            # A sum over all replicas is given to one of them.
            is_sum = variable.aggregation == "sum"
            for j, copy in enumerate(copies):
                has_it = not is_sum or (self._group.is_chief and not j)
                copy.assign(value if has_it else np.zeros_like(value))

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Yields the steps of an epoch, without those that ran before the checkpoint.

        A step is what Keras's epoch iterator yields: the first and the last step, and
        the data.
        """
        # `on_epoch_begin` precedes the training steps of an epoch. The steps of an
        # evaluation follow without it.
        if not self._epoch_begins:
            yield from steps
            return
        self._epoch_begins = False
        self._epoch_iterator, self._data = epoch_iterator, None
        first_step = 0
        for begin, end, data in steps:
            if data is not self._data:
                self._data, first_step = data, self._start_at(epoch_iterator, data)
            if begin >= first_step:
                yield begin, end, data

    def _start_at(self, epoch_iterator: Any, data: Any) -> int:
        found, self._found = self._found, None
        if found is None:
            self._batches_before = data.taken
            return 0
        self._batches_before = found.position.batches_before
        # Keras opens the dataset anew if this count is 0, as in a new process.
        epoch_iterator._steps_seen += self._batches_before
        return found.position.step

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Begins to write a checkpoint if one is due."""
        if self._is_due(batch):
            self._join()
            self._write(
                Position(self._epoch, batch, self._data.taken, self._batches_before)
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

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Counts the epoch."""
        self._epoch = epoch + 1

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Writes the last checkpoint, unless there was nothing left to do."""
        if self._data is None:
            return
        self._join()
        self._writer.wait()
        position = Position(self._epoch)
        # With `steps_per_epoch`, a later `fit` of more epochs continues in the middle
        # of the dataset. Keras drops the iterator once the dataset has ended.
        is_mid_dataset = self._epoch_iterator._current_iterator is self._data
        if is_mid_dataset and self._epoch_iterator.steps_per_epoch:
            taken = self._data.taken
            position = Position(self._epoch, batches=taken, batches_before=taken)
        self._write(position, finished=True)
        self._writer.wait()

    def _write(self, position: Position, finished: bool = False) -> None:
        """Reads the state of `fit`, and begins to write it."""
        groups = groups_of(self.model)
        # Each process reads them: a metric is a sum over all of them.
        metrics = [np.asarray(each.numpy()) for each in groups["metrics"]]
        self._last = time.monotonic()
        if (store := self._store) is None:
            return
        values = [_raw(np.asarray(each.numpy())) for each in groups["model"]]
        arrays = {f"{_METRIC}{i}": _raw(each) for i, each in enumerate(metrics)}
        snapshot = Snapshot(
            position,
            self._epochs,
            finished,
            self._changes.state(arrays),
            described(self.model),
            arrays,
            self._data.state() if position.batches else None,
            seed=self._data.seed,
            iterations=self._data.iterations,
        )

        def write() -> None:
            with store.writing() as path:
                np.savez(path / _VALUES, *values)
                snapshot.write(path, self._write_data)

        self._writer.start(write, f"a checkpoint in {store.directory}")

    def drain(self) -> None:
        """Waits a limited time for the checkpoint that is being written."""
        if not self._writer.wait(_DRAIN_SECONDS):
            _log.warning("abandoned a checkpoint that was still being written")


def _raw(value: np.ndarray) -> np.ndarray:
    # A file of NumPy would lose the dtype of bfloat16.
    return np.frombuffer(value.tobytes(), np.uint8)


def _as(variable: Any, value: np.ndarray) -> np.ndarray:
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    return value.view(dtype).reshape(variable.shape)
