"""Checkpoints of tables that grow: for each bucket its ids, and the rows of these.

A bucket lies on one ps, regardless of the number of ps, so that a checkpoint can be restored on
another number of them. Within a bucket, rows keep their order. Optimizer slots are saved in
the same order, and rows are numbered in that order where they are restored: a slot needs no
ids.

Cost: each ps writes its own part of the file, and has a copy of it in memory meanwhile.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.embedding.growing.growing_shard import GrowingShard
from tfdist.embedding.growing.hashing import bounds_of, buckets_of
from tfdist.embedding.growing.origin import Origin
from tfdist.embedding.growing.reserved import set_rows

# Of a line of what is known: that of the origin, of an id with a row, and of one without.
_ORIGIN, _ROW, _WAITING = range(3)


def table_saveables(table: Any, name: str) -> list[Any]:
    """Returns what saves and restores a table, one for each ps."""
    return [
        _Saveable(
            shard, index, len(table.shards), name, table.parts[index], table.origin
        )
        for index, shard in enumerate(table.shards)
    ]


def slot_saveables(table: Any, slot_shards: Sequence[Any], name: str) -> list[Any]:
    """Returns what saves and restores a slot of a table, one for each ps."""
    return [
        _Saveable(shard, index, len(table.shards), name, slot_shards[index])
        for index, shard in enumerate(table.shards)
    ]


class _Saveable(_tf.SaveableObject):
    """Saves the rows of one ps: with ids and origin those of the table, alone those of a slot."""

    def __init__(
        self,
        shard: GrowingShard,
        index: int,
        num_shards: int,
        name: str,
        part: Any,
        origin: Origin | None = None,
    ) -> None:
        self._shard, self._part, self._origin = shard, part, origin
        self._name = name
        first, end = bounds_of(index, num_shards)
        pieces = _Pieces(lambda: self._tensors(first, end))
        specs = []
        for bucket in range(first, end):
            for kind, (what, dtype) in enumerate(self._kinds()):
                specs.append(
                    _tf.SaveSpec(
                        tensor=pieces.reader(kind, bucket - first),
                        slice_spec="",
                        name=f"{name}/{what}/{bucket:03d}",
                        dtype=dtype,
                        device=part.device,
                    )
                )
        super().__init__(part, specs, name)

    def _kinds(self) -> list[tuple[str, tf.DType]]:
        # Few tensors: TensorFlow traces each one anew in every save.
        rows = [("rows", self._part.dtype)]
        return rows if self._origin is None else [*rows, ("known", tf.int64)]

    def _tensors(self, first: int, end: int) -> list[list[tf.Tensor]]:
        """Returns the tensors of each kind, one for each bucket."""
        with tf.device(self._part.device):
            ids, rows = _in_use(self._shard)
            values = tf.raw_ops.ResourceGather(
                resource=self._part.handle, indices=rows, dtype=self._part.dtype
            )
            values.set_shape([None, *self._part.shape[1:]])
            buckets = buckets_of(ids) - first
            pieces = [tf.dynamic_partition(values, buckets, end - first)]
            if self._origin is not None:
                known, of = self._known(ids, rows, tf.range(first, end))
                pieces.append(tf.dynamic_partition(known, of - first, end - first))
            return pieces

    def _known(
        self, ids: tf.Tensor, rows: tf.Tensor, buckets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns lines of four numbers, and the bucket of each.

        The first line of a bucket has the origin, since any of them may be the only one
        that a ps restores; then come ids with rows, and those that wait for one.
        """
        seen, count = self._shard.known(rows)
        waiting, batches = self._shard.waiting()
        origins = tf.broadcast_to(self._shard.origin.read(), [tf.size(buckets), 2])
        lines = [
            _lines(_ORIGIN, *tf.unstack(origins, axis=1)),
            _lines(_ROW, ids, _bits(seen), tf.cast(_bits(count), tf.int64)),
            _lines(_WAITING, waiting, batches),
        ]
        return tf.concat(lines, 0), tf.concat(
            [buckets, buckets_of(ids), buckets_of(waiting)], 0
        )

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> Any:
        """Numbers the rows anew, in their order."""
        kinds = len(self._kinds())
        with tf.device(self._part.device):
            # The specs have all kinds of one bucket, then those of the next.
            rows, *known = [
                tf.concat(restored_tensors[kind::kinds], 0) for kind in range(kinds)
            ]
            # Row 0 is that of absent ids.
            numbers = tf.range(1, tf.shape(rows, tf.int64)[0] + 1)
            if self._origin is None:
                with tf.control_dependencies(self._fits(rows)):
                    return set_rows(self._part.handle, numbers, rows)
            kind, *columns = tf.unstack(tf.reshape(known[0], [-1, 4]), axis=1)
            lines = tf.stack(columns, axis=1)
            origin = tf.boolean_mask(lines, tf.equal(kind, _ORIGIN))[0, :2]
            of_rows = tf.boolean_mask(lines, tf.equal(kind, _ROW))
            ids, seen, count = tf.unstack(of_rows, axis=1)
            of_waiting = tf.boolean_mask(lines, tf.equal(kind, _WAITING))
            waiting, batches, _ = tf.unstack(of_waiting, axis=1)
            checked = [*self._fits(rows), *self._origin.checks(origin, self._name)]
            with tf.control_dependencies(checked):
                written = set_rows(self._part.handle, numbers, rows)
            # In eager mode, an operation without a result is None.
            with tf.control_dependencies([written] if written is not None else []):
                self._shard.origin.set(origin)
                return self._shard.restore(
                    numbers,
                    ids,
                    tf.bitcast(seen, tf.float64),
                    tf.bitcast(tf.cast(count, tf.int32), tf.float32),
                    waiting,
                    batches,
                )

    def _fits(self, rows: tf.Tensor) -> list[Any]:
        width, most = self._part.shape[1], self._shard.capacity - 1
        return [
            tf.debugging.assert_equal(
                tf.shape(rows)[1],
                width,
                f"{self._name}: rows of another width are restored into a table that "
                f"grows with output_dim={width}. Build the layer with the width of the "
                "checkpoint",
            ),
            tf.debugging.assert_less_equal(
                tf.shape(rows)[0],
                most,
                f"{self._name}: more rows are restored than the {most} for which this ps "
                "has room. Build the layer with a larger max_rows",
            ),
        ]


def _in_use(shard: GrowingShard) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids and rows of a shard: the same for a table and its slots in one save.

    A checkpoint does not wait for a step that takes too long, and such a step may create
    rows meanwhile: asked again, a slot would have rows of other ids.
    """
    if tf.executing_eagerly():
        return shard.in_use()
    # Kept by the graph, since a tensor keeps its graph alive.
    kept = tf.compat.v1.get_default_graph().get_collection_ref(__name__)
    of_shards: dict[GrowingShard, Any] = kept[0] if kept else {}
    kept[:] = [of_shards]
    if shard not in of_shards:
        of_shards[shard] = shard.in_use()
    ids, rows = of_shards[shard]
    return ids, rows


def _lines(kind: int, *columns: tf.Tensor) -> tf.Tensor:
    """Returns int64 lines of the kind and three columns, of which some may be left out."""
    first = tf.fill(tf.shape(columns[0]), tf.constant(kind, tf.int64))
    nothing = tf.zeros_like(columns[0])
    return tf.stack([first, *columns, *[nothing] * (3 - len(columns))], axis=1)


def _bits(numbers: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(numbers, tf.int64 if numbers.dtype.size == 8 else tf.int32)


class _Pieces:
    """The tensors of a save, which its specs ask for one by one, in their order."""

    def __init__(self, compute: Callable[[], list[list[tf.Tensor]]]) -> None:
        self._compute = compute
        self._pieces: list[list[tf.Tensor]] = []

    def reader(self, kind: int, index: int) -> Callable[[], tf.Tensor]:
        """Returns what a spec calls for its tensor."""

        def read() -> tf.Tensor:
            # With the first begins another save, or another function that saves.
            if (kind, index) == (0, 0):
                self._pieces = self._compute()
            return self._pieces[kind][index]

        return read


class Index(tf.train.experimental.PythonState):
    """Saves, in one process, which id has which row; the rows are a variable like others.

    Args:
        table: The table, which is in one piece.
    """

    def __init__(self, table: Any) -> None:
        super().__init__()
        self._table = table

    def serialize(self) -> bytes:
        """Returns the ids and their rows, and those that wait for one."""
        (shard,) = self._table.shards
        ids, rows = shard.in_use()
        seen, count = shard.known(rows)
        waiting, batches = shard.waiting()
        file = io.BytesIO()
        of_ids = {"ids": ids, "rows": rows, "seen": seen, "count": count}
        # A row that was given up has slots of its last id.
        of_ids["used"] = shard.used()
        of_ids["origin"] = shard.origin.read()
        np.savez(file, **of_ids, waiting=waiting, batches=batches)
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Replaces the index by that of a file."""
        self._restore(_read(string_value))

    def _restore(self, found: dict[str, tf.Tensor]) -> None:
        (shard,) = self._table.shards
        self._table.set_origin(found.pop("origin"))
        shard.restore(**found)

    def load(self, ids: np.ndarray, of_file: bytes | None) -> None:
        """Does so, or numbers the ids in their order, if the file's rows do not fit."""
        (shard,) = self._table.shards
        found = {} if of_file is None else _read(of_file)
        if found and found["used"] <= shard.capacity:
            self._restore(found)
            return
        numbers, none = (
            tf.range(1, len(ids) + 1, dtype=tf.int64),
            tf.zeros([0], tf.int64),
        )
        shard.restore(numbers, tf.constant(ids), tf.timestamp(), 0.0, none, none)


def _read(index: bytes) -> dict[str, tf.Tensor]:
    with np.load(io.BytesIO(index)) as file:
        return {name: tf.constant(file[name]) for name in file.files}
