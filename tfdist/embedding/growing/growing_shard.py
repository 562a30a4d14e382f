"""The rows of one ps: which id has which, and how one is created."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.embedding.growing.admission import CountFilter, ProbabilityFilter
from tfdist.embedding.growing.hash_table import ABSENT, HashTable
from tfdist.embedding.growing.reserved import Reserved
from tfdist.embedding.growing.rules import RowRules
from tfdist.variables.resources import Numbers, Resource

# In `_state`: of rows, how many were ever used (with that of absent ids) and how many
# of these are free; of ids, how many got a row, did not as all were used, and lost theirs.
_USED, _FREE = range(2)


class KnownIds(NamedTuple):
    """The ids of some rows, and the ids that wait for a row.

    Attributes:
        ids: The id of each row.
        seen: The time of each row's last lookup.
        count: In how many training steps that was, decayed.
        waiting: The ids that have no row yet.
        batches: In how many batches each of these was.
    """

    ids: tf.Tensor
    seen: tf.Tensor
    count: tf.Tensor
    waiting: tf.Tensor
    batches: tf.Tensor


class GrowingShard:
    """Finds the rows of ids on one ps, and creates those that are missing.

    An id is in the index only once its row is complete, so that finding needs no lock. What
    is missing is looked for again under the lock: of workers that meet an id at the same
    time, one creates it. If a worker dies meanwhile, a row may stay unused, and none has two
    ids.

    Memory besides the rows: less than 70 bytes per id, 49.5 of them in the index; 54.5
    in all were measured (docs/measured-embeddings.md).

    Args:
        device: The device of the ps, or "" for this process.
        capacity: How many rows there are, that of absent ids included.
        rules: The rules by which ids get rows; those of eviction are the table's.
        write: Writes the first values of rows, given their numbers and ids.
        origin: The numbers of an `Origin`.
        reuses: Whether a row that was given up may get another id.
    """

    def __init__(
        self,
        device: str,
        capacity: int,
        rules: RowRules,
        write: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Operation]],
        origin: Sequence[int],
        reuses: bool = True,
    ) -> None:
        self.device = device
        self.capacity = capacity
        self._admission = rules.admission
        self._write = write
        self._index = HashTable(device)
        is_counted = isinstance(rules.admission, CountFilter)
        self._counts = HashTable(device) if is_counted else None
        # TensorFlow's tables cannot find or insert an id in one operation.
        self._lock = Resource("MutexV2", device)
        self._state = Numbers(device, [1, 0, 0, 0, 0])
        # Not a constant of traced steps: what is restored may bring another.
        self.origin = Numbers(device, origin)
        # Of each row its id; and the numbers of free rows, of which the last is next.
        self._ids = Reserved(device, capacity)
        self._free = Reserved(device, capacity)
        self._reuses = reuses
        self._seen: Reserved | None = None
        self._count: Reserved | None = None
        if rules.follows:
            self._seen = Reserved(device, capacity, tf.float64)
            self._count = Reserved(device, capacity, tf.float32)

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the row of each id, int64, and `ABSENT` for those that have none."""
        return self._index.find(ids)

    def find_or_create(self, ids: tf.Tensor) -> tf.Tensor:
        """Does the same once those that are missing, and admitted, have a row.

        Each of the ids is there once.
        """
        with tf.device(self.device):
            ids = tf.identity(ids)
            found = self._index.find(ids)
            is_missing = tf.equal(found, ABSENT)

            def create() -> tf.Tensor:
                created = self._create(tf.boolean_mask(ids, is_missing))
                with tf.control_dependencies(created):
                    return self._index.find(ids)

            rows = tf.cond(tf.reduce_any(is_missing), create, lambda: found)
            with tf.control_dependencies(self._follow(rows)):
                return tf.identity(rows)

    def _follow(self, rows: tf.Tensor) -> list[tf.Operation]:
        """Notes that a training step has looked these rows up."""
        if self._seen is None or self._count is None:
            return []
        now = tf.fill(tf.shape(rows), tf.timestamp())
        return [
            self._seen.set_at(rows, now),
            self._count.add_at(rows, tf.ones(tf.shape(rows))),
        ]

    def know(self, rows: tf.Tensor, seen: Any, count: Any) -> list[tf.Operation]:
        """Sets when rows were last looked up, in seconds, and how often."""
        if self._seen is None or self._count is None:
            return []
        shape = tf.shape(rows)
        return [
            self._seen.set_at(rows, tf.broadcast_to(tf.cast(seen, tf.float64), shape)),
            self._count.set_at(rows, tf.broadcast_to(count, shape)),
        ]

    def create(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows of ids, created whatever the admission, if there is room."""
        with tf.device(self.device):
            created = self._create(ids, admits_all=True)
            with tf.control_dependencies(created):
                return self._index.find(ids)

    def remove(self, ids: tf.Tensor) -> tf.Tensor:
        """Gives the rows of ids up; returns how many there were. Each id is there once."""
        with tf.device(self.device):
            lock = tf.raw_ops.MutexLock(mutex=self._lock.handle)
            with tf.control_dependencies([lock]):
                rows = self._index.find(ids)
                free = self._state.read()[_FREE]
            is_there = tf.not_equal(rows, ABSENT)
            ids, rows = tf.boolean_mask(ids, is_there), tf.boolean_mask(rows, is_there)
            count = tf.size(ids, tf.int64)
            # Out of the index first: no lookup may find a row that is free already.
            with tf.control_dependencies([self._index.remove(ids)]):
                done = [
                    self._state.add(tf.stack([0, count * self._reuses, 0, 0, count]))
                ]
                if self._reuses:
                    done.append(self._free.set_at(tf.range(free, free + count), rows))
            with tf.control_dependencies(done):
                unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlocked]):
                return tf.identity(count)

    def _create(self, ids: tf.Tensor, admits_all: bool = False) -> list[tf.Operation]:
        lock = tf.raw_ops.MutexLock(mutex=self._lock.handle)
        with tf.control_dependencies([lock]):
            # Another worker may have created some since.
            ids = tf.boolean_mask(ids, tf.equal(self._index.find(ids), ABSENT))
            ids, counted = (ids, []) if admits_all else self._admitted(ids)
            used, free, *_ = tf.unstack(self._state.read())
        room = self.capacity - used + free
        fits = tf.minimum(tf.size(ids, tf.int64), room)
        reused = tf.minimum(fits, free)
        refused = tf.size(ids, tf.int64) - fits
        new = ids[:fits]
        rows = tf.concat(
            [
                self._free.at(tf.range(free - reused, free)),
                tf.range(used, used + fits - reused),
            ],
            axis=0,
        )
        # First the rows are taken: whoever dies after that leaves them unused.
        taken = self._state.add(tf.stack([fits - reused, -reused, fits, refused, 0]))
        with tf.control_dependencies([taken, *counted]):
            written = [*self._write(rows, new), self._ids.set_at(rows, new)]
            written += self.know(rows, tf.timestamp(), 0.0)
        with tf.control_dependencies(written):
            inserted = self._index.insert(new, rows)
        with tf.control_dependencies([inserted]):
            return [tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)]

    def _admitted(self, ids: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
        """Returns the ids that get a row, and the operations that count the others."""
        if isinstance(self._admission, ProbabilityFilter):
            drawn = tf.random.uniform(tf.shape(ids))
            return tf.boolean_mask(ids, drawn < self._admission.probability), []
        if self._counts is None:
            return ids, []
        assert isinstance(self._admission, CountFilter)
        seen = self._counts.find(ids) + 1
        enough = seen >= self._admission.count
        admitted = tf.boolean_mask(ids, enough)
        waiting = tf.boolean_mask(ids, ~enough)
        return admitted, [
            self._counts.insert(waiting, tf.boolean_mask(seen, ~enough)),
            self._counts.remove(admitted),
        ]

    def in_use(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids and their rows, which ascend."""
        with tf.device(self.device):
            # In this order: all that it counts have rows by then.
            size = self._index.size()
            with tf.control_dependencies([size]):
                used = self._state.read()[_USED]
            rows = tf.range(1, used)
            ids = self._ids.at(rows)
            # To look for a million ids takes as long as all else that a checkpoint does.
            sought = tf.where(tf.equal(size, used - 1), tf.zeros_like(size), used - 1)
            # A row is free, or was left half created, if its id has another or none.
            is_used = tf.equal(self._index.find(ids[:sought]), rows[:sought])
            found = tf.concat([tf.where(is_used)[:, 0], tf.range(sought, used - 1)], 0)
            return tf.gather(ids, found), tf.gather(rows, found)

    def waiting(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids that wait for a row, and in how many batches each was."""
        if self._counts is None:
            with tf.device(self.device):
                return tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)
        return self._counts.items()

    def restore(
        self,
        rows: tf.Tensor,
        known: KnownIds,
        used: tf.Tensor | int = 0,
    ) -> tf.Operation:
        """Replaces the index: these ids have these rows, and no others.

        Args:
            rows: `[n]`.
            known: The ids of these rows, and those that wait for a row.
            used: How many rows, from the first, are not to be used again.
        """
        with tf.device(self.device):
            replaced = [
                self._ids.set_at(rows, known.ids),
                self._state.add(self._change_to(rows, used)),
                self._index.replace(known.ids, rows),
                *self.know(rows, known.seen, known.count),
            ]
            if self._counts is not None:
                replaced.append(self._counts.replace(known.waiting, known.batches))
            with tf.control_dependencies(replaced):
                return tf.identity(tf.size(rows))

    def _change_to(self, rows: tf.Tensor, used: tf.Tensor | int) -> tf.Tensor:
        """Returns the change that makes the state that of these rows."""
        count = tf.size(rows, tf.int64)
        last = tf.reduce_max(tf.concat([[tf.constant(ABSENT, tf.int64)], rows], 0))
        used = tf.maximum(last + 1, tf.cast(used, tf.int64))
        return tf.stack([used, 0, count, 0, 0]) - self._state.read()

    def seed(self) -> tf.Tensor:
        """Returns the seed of first rows."""
        return self.origin.read()[0]

    def used(self) -> tf.Tensor:
        """Returns how many rows were ever used, the row of absent ids included."""
        return self._state.read()[_USED]

    @property
    def is_followed(self) -> bool:
        """True if it is known of each row when and how often it was looked up."""
        return self._seen is not None

    def size(self) -> int:
        """Returns how many ids have a row."""
        return self.state()["rows"]

    def state(self) -> dict[str, int]:
        """Returns how many ids have a row, were created, refused and removed."""
        _, _, created, refused, removed = self._state.read().numpy().tolist()
        return {
            # Not what was created less what was removed: a row may be left half created.
            "rows": int(self._index.size()),
            "created": created,
            "refused": refused,
            "removed": removed,
            "max_rows": self.capacity - 1,
        }

    def now(self) -> float:
        """Returns the time of the ps, which dates the lookups of rows."""
        with tf.device(self.device):
            return float(tf.timestamp())

    def known(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns when each row was last looked up, in seconds, and how often.

        If that is not followed, as if it were now, and never.
        """
        with tf.device(self.device):
            if self._seen is None or self._count is None:
                now = tf.fill(tf.shape(rows), tf.timestamp())
                return now, tf.zeros(tf.shape(rows), tf.float32)
            return self._seen.at(rows), self._count.at(rows)
