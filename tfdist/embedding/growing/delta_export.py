"""Writes the tables of a model while it trains: all rows first, then changes."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdist import _tf
from tfdist.embedding.growing import chain
from tfdist.embedding.growing.growing_layer import GrowingLayer

_CHUNK = 1_000_000  # rows of a file


@dataclass(frozen=True)
class _Written:
    """The last export written by this process, the base of the next delta.

    No plain attribute of the callback, since `checkpoint_dir` would restore it: after a
    restart, nobody knows which ids have lost their rows since.

    Attributes:
        number: Its number.
        at: The time of the export, by the clock of this process.
        since: The times of its ps, for each table.
    """

    number: int
    at: float
    since: dict[str, list[float]]


@dataclass(frozen=True)
class _Newest:
    """The newest export that may be there: no plain attribute either.

    Attributes:
        number: Its number; 0 if there is none.
    """

    number: int


class DeltaExport(keras.callbacks.Callback):
    """Exports growing tables at the end of epochs, so that servers can follow.

    The first export of each `fit` is full. The others are deltas: the rows that training
    steps have looked up, or `upsert` has set, since the one before, and the ids that have
    lost their rows. `read_export` puts them together. No step is in flight meanwhile,
    so an export has each row as it was at one time.

    Only the chief writes. An export that was not written whole is not there.

    Cost: a pass over what is known of each row on its ps, and the rows that are written,
    once over the network to the chief: `rows (8 + output_dim x itemsize)` bytes.

    Args:
        directory: The directory of the exports; a later `fit` adds to them.
        every: `"epoch"`, or the least time between two, such as `"10min"`: the first epoch
            that ends after it exports, and so does the end of `fit`. Give `fit`
            `steps_per_epoch` if epochs are long.
        keep: How many of the newest exports stay, with all that they build on.
        longest_chain: The most exports that build on each other before a full one.

    Raises:
        ValueError: If `every` is no time, or `keep` or `longest_chain` is below 1; and at
            the start of `fit`, if the model has no table that grows, or one whose
            touched rows are not known.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: str = "epoch",
        *,
        keep: int = 3,
        longest_chain: int = 24,
    ) -> None:
        super().__init__()
        self._period = chain.period_of(every)
        for name, value in (("keep", keep), ("longest_chain", longest_chain)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name} must be a number of at least 1; received {value!r}"
                )
        self._directory = Path(directory)
        self._keep, self._longest = keep, longest_chain
        self._last: _Written | None = None
        # The newest export that may be there; None before `fit`, when any may.
        self._newest: _Newest | None = None
        self._is_due = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the model."""
        self._last, self._is_due = None, True
        tables = self._tables()
        if not tables:
            raise ValueError(
                f"{self.model.name} has no tfdist.embedding.DynamicEmbedding or "
                "DynamicEmbeddingBag, whose rows DeltaExport could export"
            )
        for path, layer in tables.items():
            if not layer.follows:
                raise ValueError(
                    f"{path}: it is not known which rows were touched. Build the layer "
                    "with follow=True, or with an eviction, to use DeltaExport"
                )
        there = chain.written(self._directory)
        chain.check_tables(self._directory, there, tables)
        self._newest = _Newest(max(there, default=0))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Exports, if it is time."""
        last, period = self._last, self._period
        self._is_due = not (last and period and time.monotonic() - last.at < period)
        if self._is_due:
            self.export()

    def on_train_end(self, logs: Any = None) -> None:
        """Exports the changes of the last epochs, if it was not time at their ends."""
        if not self._is_due:
            self.export()

    def export(self) -> Path:
        """Writes an export now, and returns its folder.

        Raises:
            ValueError: If another has written there since this one began.
        """
        strategy: Any = self.model.distribute_strategy
        if hasattr(strategy, "in_flight"):
            strategy.in_flight.join()
        there = chain.written(self._directory)
        if self._newest is not None:
            chain.check_alone(self._directory, there, self._newest.number)
        parent = self._last
        if parent and len(chain.chain_to(parent.number, there)) >= self._longest:
            parent = None
        # If writing fails, the ids that were removed are in no export: the next one is full.
        self._last = None
        # Before rows are read: what is touched after this is in the next export, too.
        now = {path: layer.table.now() for path, layer in self._tables().items()}
        number = max(there, default=0) + 1
        # What a process that was killed has left goes, too.
        unfinished = self._directory / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        tables = {}
        for index, (path, layer) in enumerate(self._tables().items()):
            # For a full export too, which needs none: the next delta counts from here.
            removed = layer.table.taken_removed()
            if parent is None:
                removed, files = removed[:0], layer.table.export(_CHUNK)
            else:
                files = layer.table.touched(parent.since[path], _CHUNK)
            rows = 0
            for count, (ids, values) in enumerate(files):
                np.savez(unfinished / f"{index}-{count}.npz", ids=ids, rows=values)
                rows += len(ids)
            np.savez(unfinished / f"{index}-removed.npz", ids=removed)
            tables[path] = {"index": index, "rows": rows, "removed": len(removed)}
        export = chain.Export(number, parent.number if parent else None, tables)
        (unfinished / chain.MANIFEST).write_text(chain.as_json(export))
        # Readers look for the name alone, so a folder has it only once it is complete.
        folder = unfinished.rename(self._directory / export.folder)
        self._last = _Written(number, time.monotonic(), now)
        self._newest = _Newest(number)
        # After the new one is there: whenever this process ends, a chain is whole.
        for each in chain.superfluous(chain.written(self._directory), self._keep):
            shutil.rmtree(self._directory / each.folder)
        return folder

    def _tables(self) -> dict[str, GrowingLayer]:
        layers = _tf.flatten_layers(self.model)
        return {each.path: each for each in layers if isinstance(each, GrowingLayer)}
