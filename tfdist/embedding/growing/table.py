"""A table over all ps: its rows, their ids, and lookups that a tape goes through."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding.batch import Bag
from tfdist.embedding.growing import saving
from tfdist.embedding.growing.eviction import EvictRare, Known, decay_of
from tfdist.embedding.growing.export import Export
from tfdist.embedding.growing.growing_shard import ABSENT, GrowingShard
from tfdist.embedding.growing.hashing import owners_of
from tfdist.embedding.growing.initial_rows import Rows
from tfdist.embedding.growing.lookup import at, device_of, look_up, sum_bags
from tfdist.embedding.growing.origin import Origin
from tfdist.embedding.growing.reserved import set_rows
from tfdist.embedding.growing.rules import RowRules
from tfdist.embedding.growing.slots import (
    SlotOfRows,
    Slots,
    fill_rows,
    initializer_of_slot,
)
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import each_row_once

_log = logging.getLogger("tfdist")


@dataclass(eq=False)
class GrowingTable:
    """Looks ids up in a variable, each in the row that it was given.

    Cost: as `tfdist.embedding.Embedding`'s, with 8 bytes for an id in place of 4. The index from
    ids to rows stays on the ps, and so does the row's number between a step's lookup
    and its update.

    Args:
        variable: The rows, in as many shards as there are ps, or in one piece.
        path: The path of the layer, for errors and warnings.
        first_rows: Returns the first rows of ids.
        origin: The parameters that first rows depend on, besides the ids.
        rules: The rules by which ids get rows and lose them.
    """

    variable: Any
    path: InitVar[str]
    first_rows: Rows
    origin: Origin
    rules: RowRules

    def __post_init__(self, path: str) -> None:
        self._path, self._has_warned = path, False
        is_split = isinstance(self.variable, PartitionedVariable)
        self.parts = list(self.variable.shards) if is_split else [self.variable]
        self.slots = Slots()
        # None until somebody asks, and will ask again.
        self._removed: list[np.ndarray] | None = None
        self._loaded = np.zeros(0, np.int64)
        self.shards = [
            GrowingShard(
                device_of(part),
                part.shape[0],
                self.rules,
                self._writes(i),
                self.origin.numbers(),
                # Outside of a cluster nobody knows an optimizer's slots, of which a row
                # that gets another id would have to begin anew.
                reuses=is_split,
            )
            for i, part in enumerate(self.parts)
        ]
        for part in self.parts:
            with tf.init_scope(), tf.device(device_of(part)):
                _set_rows(part, [ABSENT], tf.zeros([1, part.shape[1]], part.dtype))
        self._export = Export(self.shards, self.parts)
        if is_split:
            self._tell_rows_in_use(self.parts)

    def _writes(self, index: int) -> Any:
        def write(rows: tf.Tensor, ids: tf.Tensor) -> list[tf.Operation]:
            part = self.parts[index]
            first = self.first_rows(ids, self.shards[index].seed())
            return [
                _set_rows(part, rows, first),
                *self.slots.write_first(index, rows),
            ]

        return write

    # For whoever creates a slot, and knows the table alone.
    initializer_of_slot = staticmethod(initializer_of_slot)

    def add_slot(self, slot: Any, initializer: SlotOfRows) -> None:
        """Has each row that is created from now on begin with a row of the slot, too."""
        self.slots.add(slot, initializer.first)
        slot.growth = self
        self._tell_rows_in_use(slot.shards)
        for shard, part in zip(self.shards, slot.shards, strict=True):
            with tf.init_scope():
                fill_rows(part, tf.range(shard.used()), initializer.first)

    def has_slot(self, variable: Any) -> bool:
        """Returns True if a variable is a slot of the table."""
        return variable is not self.variable

    def rows_of_slot(self, slot: Any) -> np.ndarray:
        """Returns the rows of a slot, in the order of the ids of `export`."""
        found = [np.zeros((0, *slot.shape[1:]), slot.dtype.as_numpy_dtype)]
        for shard, part in zip(self.shards, slot.shards, strict=True):
            _, numbers = shard.in_use()
            found.append(self._gathered(part, numbers).numpy())
        return np.concatenate(found)

    def set_origin(self, saved: Any) -> None:
        """Takes the seed of a file.

        Raises:
            InvalidArgumentError: If that, or the type of its ids, is not the table's.
        """
        saved = tf.constant(saved, tf.int64)
        self.origin.checks(saved, self._path)
        for shard in self.shards:
            shard.origin.set(saved)

    def load(self, ids: np.ndarray, rows: np.ndarray) -> int:
        """Replaces the table; returns for how many ids there was no room."""
        # A list, since rows are removed while it is read.
        for old, _ in list(self.export(len(ids) + 1)):
            self.remove(old)
        self._loaded = ids
        return self.upsert(ids, rows)

    def write(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Sets the rows of ids that all have one."""
        self._write(self.parts, ids, rows)

    def _write(self, parts: Sequence[Any], ids: np.ndarray, rows: np.ndarray) -> None:
        for (shard, mine), part in zip(self._dealt(ids), parts, strict=True):
            numbers = shard.find(tf.constant(ids[mine]))
            with at(device_of(part)):
                _set_rows(part, numbers, tf.constant(rows[mine], part.dtype))

    def _dealt(self, ids: np.ndarray) -> list[tuple[GrowingShard, np.ndarray]]:
        """Returns, for each ps, which of the ids it has."""
        owners = owners_of(tf.constant(ids), len(self.shards)).numpy()
        return [(shard, owners == index) for index, shard in enumerate(self.shards)]

    def without_room(self, ids: np.ndarray) -> int:
        """Returns for how many of these ids there is no room, if it has no others."""
        dealt = self._dealt(ids)
        return sum(max(int(mine.sum()) - (s.capacity - 1), 0) for s, mine in dealt)

    def assign_slot(self, slot: Any, rows: Any) -> None:
        """Sets the rows of a slot, in the order of the ids that were loaded last.

        Raises:
            ValueError: If these are not as many.
        """
        rows, ids = np.asarray(rows), self._loaded
        if not self.has_slot(slot) or rows.shape != (len(ids), *slot.shape[1:]):
            raise ValueError(
                f"{slot.name} is of a table that grows, and was given {rows.shape} where "
                f"{len(ids)} ids were loaded: set rows by the layer's upsert(), or load a "
                "file that has the table, too"
            )
        self._write(slot.shards, ids, rows)

    def _tell_rows_in_use(self, parts: Sequence[Any]) -> None:
        """Has reports of placement count rows that ids have, not those reserved."""
        for shard, part in zip(self.shards, parts, strict=True):
            part.rows_in_use = shard.size

    def factories(self, variable: Any) -> saving.Factories:
        """Returns what saves and restores the table, or a slot of it."""
        if variable is self.variable:
            return saving.Factories(self._export, self.parts, self.origin)
        return saving.Factories(self._export, variable.shards)

    def look_up(self, ids: tf.Tensor, creates: bool) -> tf.Tensor:
        """Looks up ids of any shape, S; returns rows of the shape S + [width].

        Args:
            ids: int64.
            creates: Whether ids that have no row get one, if they are admitted. Ids
                without one read zeros.
        """
        return each_row_once(
            lambda unique: look_up(self.parts, self.shards, unique, creates),
            ids,
            self.variable.shape[1:],
        )

    def sum_bags(self, bag: Bag, combiner: str, creates: bool) -> tf.Tensor:
        """Combines the rows of bags: `[batch, width]`, of at least float32."""
        return sum_bags(self.parts, self.shards, bag, combiner, creates)

    def upsert(self, ids: np.ndarray, rows: np.ndarray) -> int:
        """Sets the rows of ids, each there once; returns for how many there was no room.

        They stay at the next eviction, however seldom they were looked up.
        """
        stays = [
            each.count for each in self.rules.eviction if isinstance(each, EvictRare)
        ]
        refused = 0
        for (shard, mine), part in zip(self._dealt(ids), self.parts, strict=True):
            numbers = shard.create(tf.constant(ids[mine])).numpy()
            fits = numbers != ABSENT
            refused += int((~fits).sum())
            set_ones = tf.constant(numbers[fits])
            counts = tf.maximum(shard.known(set_ones)[1], max(stays, default=0.0))
            shard.know(set_ones, shard.now(), counts)
            with at(device_of(part)):
                _set_rows(
                    part, numbers[fits], tf.constant(rows[mine][fits], part.dtype)
                )
        return refused

    def remove(self, ids: np.ndarray) -> int:
        """Gives up the rows of ids, each there once; returns how many there were."""
        if self._removed is not None:
            self._removed.append(ids)
        dealt = self._dealt(ids)
        return sum(int(shard.remove(tf.constant(ids[mine]))) for shard, mine in dealt)

    def taken_removed(self) -> np.ndarray:
        """Returns the ids that were removed since the last call; none at the first."""
        removed, self._removed = self._removed, []
        return np.concatenate([np.zeros(0, np.int64), *(removed or [])])

    def states(self) -> list[dict[str, int]]:
        """Returns the state of each shard, and warns the first time that one was full."""
        states = [shard.state() for shard in self.shards]
        refused = sum(state["refused"] for state in states)
        if refused and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s is full: %d times an id got no row, and read zeros. Give it a larger "
                "max_rows, an admission, or an eviction",
                self._path,
                refused,
            )
        return states

    def now(self) -> list[float]:
        """Returns the time of each ps."""
        return [shard.now() for shard in self.shards]

    def touched(
        self, since: Sequence[float], chunk: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the ids that were looked up since a time of each ps, and their rows."""
        by_shard = dict(zip(self.shards, since, strict=True))
        for shard, part, ids, numbers in self._in_chunks(chunk):
            is_touched = shard.known(numbers)[0] >= by_shard[shard]
            numbers = tf.boolean_mask(numbers, is_touched)
            yield (
                tf.boolean_mask(ids, is_touched).numpy(),
                self._gathered(part, numbers).numpy(),
            )

    def export(self, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids and their rows, ps by ps, at most `chunk` at a time."""
        for ids, rows, _ in self.export_with_counts(chunk):
            yield ids, rows

    def export_with_counts(
        self, chunk: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Does so with the number of training steps that looked each row up."""
        for shard, part, ids, numbers in self._in_chunks(chunk):
            counts = shard.known(numbers)[1]
            yield ids.numpy(), self._gathered(part, numbers).numpy(), counts.numpy()

    def evict(self, chunk: int = 1_000_000) -> int:
        """Gives up the rows that a rule gives up; returns how many those are."""
        removed = 0
        for shard, part, ids, numbers in self._in_chunks(chunk):
            norms = tf.norm(tf.cast(self._gathered(part, numbers), tf.float32), axis=1)
            seen, count = shard.known(numbers)
            known = Known(shard.now() - seen.numpy(), count.numpy(), norms.numpy())
            # Rules judge the count before it decays.
            shard.know(numbers, seen, count * decay_of(self.rules.eviction))
            goes = np.zeros(len(ids), bool)
            for rule in self.rules.eviction:
                goes |= rule.evicts(known)
            removed += self.remove(ids.numpy()[goes])
        return removed

    def _in_chunks(self, chunk: int) -> Iterator[tuple[GrowingShard, Any, Any, Any]]:
        for shard, part in zip(self.shards, self.parts, strict=True):
            ids, numbers = shard.in_use()
            for start in range(0, len(ids), chunk):
                some = slice(start, start + chunk)
                yield shard, part, ids[some], numbers[some]

    def _gathered(self, part: Any, numbers: tf.Tensor) -> tf.Tensor:
        with at(device_of(part)):
            return tf.raw_ops.ResourceGather(
                resource=part.handle, indices=numbers, dtype=part.dtype
            )


def _set_rows(part: Any, rows: Any, values: tf.Tensor) -> tf.Operation:
    return set_rows(part.handle, tf.cast(rows, tf.int64), values)
