"""Checkpoints of tables that grow: for each bucket its ids, and the rows of these.

A bucket lies on one ps, whatever the number of ps, so that a checkpoint can be restored on
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
from tfdist.embedding.growing.hashing import bounds_of
from tfdist.embedding.growing.reserved import set_rows
from tfdist.embedding.growing.shard import Shard


def table_saveables(table: Any, name: str) -> list[Any]:
    """Returns what saves and restores a table, one for each ps."""
    return [
        _Saveable(shard, index, len(table.shards), name, table.parts[index], True)
        for index, shard in enumerate(table.shards)
    ]


def slot_saveables(table: Any, slot_shards: Sequence[Any], name: str) -> list[Any]:
    """Returns what saves and restores a slot of a table, one for each ps."""
    return [
        _Saveable(shard, index, len(table.shards), name, slot_shards[index], False)
        for index, shard in enumerate(table.shards)
    ]


class _Saveable(_tf.SaveableObject):
    """Saves the rows of one ps: with their ids those of the table, alone those of a slot."""

    def __init__(
        self,
        shard: Shard,
        index: int,
        num_shards: int,
        name: str,
        part: Any,
        with_ids: bool,
    ) -> None:
        self._shard, self._part, self._with_ids = shard, part, with_ids
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
        rows = [("rows", self._part.dtype)]
        if not self._with_ids:
            return rows
        return [
            *rows,
            ("ids", tf.int64),
            ("seen", tf.float64),
            ("count", tf.float32),
            ("waiting", tf.int64),
            ("batches", tf.int64),
        ]

    def _tensors(self, first: int, end: int) -> list[list[tf.Tensor]]:
        """Returns the tensors of each kind, one for each bucket."""
        with tf.device(self._part.device):
            ids, rows, sizes = _order_of(self._shard, first, end)
            values = tf.raw_ops.ResourceGather(
                resource=self._part.handle, indices=rows, dtype=self._part.dtype
            )
            values.set_shape([None, *self._part.shape[1:]])
            pieces = [tf.split(values, sizes, num=end - first)]
            if self._with_ids:
                of_ids = (ids, *self._shard.known(rows))
                pieces += [tf.split(each, sizes, num=end - first) for each in of_ids]
                *of_waiting, sizes = self._shard.waiting_in_order(first, end)
                pieces += [
                    tf.split(each, sizes, num=end - first) for each in of_waiting
                ]
            return pieces

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> Any:
        """Numbers the rows anew, in their order."""
        kinds = len(self._kinds())
        with tf.device(self._part.device):
            rows, *of_ids = [
                tf.concat(restored_tensors[kind::kinds], 0) for kind in range(kinds)
            ]
            checked = self._fits(rows)
            with tf.control_dependencies(checked):
                numbers = tf.range(1, tf.shape(rows, tf.int64)[0] + 1)
                written = set_rows(self._part.handle, numbers, rows)
            if not self._with_ids:
                return written
            with tf.control_dependencies([written] if written is not None else []):
                return self._shard.restore(numbers, *of_ids)

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


def _order_of(
    shard: Shard, first: int, end: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns what `in_order` does: once for a table and its slots in one save.

    A checkpoint does not wait for a step that takes too long, and such a step may create
    rows meanwhile: found again, the order would give a slot rows of other ids.
    """
    if tf.executing_eagerly():
        return shard.in_order(first, end)
    # Kept by the graph, since a tensor keeps its graph alive.
    kept = tf.compat.v1.get_default_graph().get_collection_ref(__name__)
    orders: dict[Shard, Any] = kept[0] if kept else {}
    kept[:] = [orders]
    if shard not in orders:
        orders[shard] = shard.in_order(first, end)
    found: tuple[tf.Tensor, tf.Tensor, tf.Tensor] = orders[shard]
    return found


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
        ids, rows, _ = shard.in_order(*bounds_of(0, 1))
        seen, count = shard.known(rows)
        waiting, batches, _ = shard.waiting_in_order(*bounds_of(0, 1))
        file = io.BytesIO()
        of_ids = {"ids": ids, "rows": rows, "seen": seen, "count": count}
        # A row that was given up has slots of its last id.
        of_ids["used"] = shard.used()
        np.savez(file, **of_ids, waiting=waiting, batches=batches)
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Replaces the index by that of a file."""
        (shard,) = self._table.shards
        shard.restore(**_read(string_value))

    def load(self, ids: np.ndarray, of_file: bytes | None) -> None:
        """Does so, or numbers the ids in their order, if the file's rows do not fit."""
        (shard,) = self._table.shards
        found = {} if of_file is None else _read(of_file)
        if found and found["used"] <= shard.capacity:
            shard.restore(**found)
            return
        numbers, none = (
            tf.range(1, len(ids) + 1, dtype=tf.int64),
            tf.zeros([0], tf.int64),
        )
        shard.restore(numbers, tf.constant(ids), tf.timestamp(), 0.0, none, none)


def _read(index: bytes) -> dict[str, tf.Tensor]:
    with np.load(io.BytesIO(index)) as file:
        return {name: tf.constant(file[name]) for name in file.files}
