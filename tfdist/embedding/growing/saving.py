"""Checkpoints of tables that grow: a few pieces for each ps, of neighbouring buckets.

A bucket lies on one ps, regardless of the number of ps, so that a checkpoint can be restored on
another number of them. Within a piece, rows keep their order. Optimizer slots are saved in
the same order, and rows are numbered in that order where they are restored: a slot needs no
ids.

Cost: each ps writes its own part of the file, and has a copy of it in memory meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist import _tf
from tfdist.embedding.growing.export import Export, Piece
from tfdist.embedding.growing.growing_shard import KnownIds
from tfdist.embedding.growing.hashing import buckets_of
from tfdist.embedding.growing.origin import Origin
from tfdist.embedding.growing.pieces import Pieces, bounds_of
from tfdist.embedding.growing.reserved import set_rows

# Of a line of what is known, in files of earlier versions: that of the origin, of an id
# with a row, and of one without.
_ORIGIN, _ROW, _WAITING = range(3)


class _Known(NamedTuple):
    """The rows of a checkpoint, and the ids that wait for one, without values."""

    origin: tf.Tensor
    ids: tf.Tensor
    seen: tf.Tensor
    count: tf.Tensor
    waiting: tf.Tensor
    batches: tf.Tensor


class _Key(str):
    """The name of a tensor that another ps may restore, too.

    TensorFlow refuses a name that it meets twice.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _Saveable(_tf.SaveableObject):
    """Saves the rows of one ps: with an origin those of the table, without those of a slot.

    A piece of the table has an index: the origin, whether it is known when rows were
    looked up, how many ids wait, and then what is known of each. A piece of a slot has
    the buckets of its rows, so that it is restored without their ids.
    """

    def __init__(
        self,
        export: Export,
        index: int,
        name: str,
        part: Any,
        origin: Origin | None,
    ) -> None:
        self._export, self._index = export, index
        self._shard, self._part, self._origin = export.shards[index], part, origin
        self._name, self._buckets = name, bounds_of(index, len(export.shards))
        pieces = Pieces.named(name.rpartition("/")[2])
        self._has_index = pieces.has_index
        self._pieces = pieces.within(*self._buckets)
        self._saved: list[Piece] = []
        # Not within a function that may save again and again.
        self._is_now = tf.executing_eagerly()
        specs = [
            _tf.SaveSpec(
                tensor=self._reader(kind, i),
                slice_spec="",
                name=_Key(f"{name}/{kind}/{piece:03d}"),
                dtype={"rows": part.dtype, "buckets": tf.uint8}.get(kind, tf.int64),
                device=part.device,
            )
            for i, (piece, _, _) in enumerate(self._pieces)
            for kind in self._kinds()
        ]
        super().__init__(part, specs, name)

    def _kinds(self) -> list[str]:
        # Few tensors: TensorFlow traces each one anew in every save.
        if self._origin is None:
            return ["rows", "buckets"] if self._has_index else ["rows"]
        return ["rows", "index" if self._has_index else "known"]

    def _reader(self, kind: str, i: int) -> Callable[[], tf.Tensor]:
        """Returns what a save calls for a tensor, after it has called for those before."""

        def read() -> tf.Tensor:
            if kind == "rows":
                # With the first begins another save, or another function that saves.
                if i == 0:
                    self._saved = self._export(self._is_now)[self._index]
                with tf.device(self._part.device):
                    values = tf.raw_ops.ResourceGather(
                        resource=self._part.handle,
                        indices=self._saved[i].rows,
                        dtype=self._part.dtype,
                    )
                values.set_shape([None, *self._part.shape[1:]])
                return values
            piece = self._saved[i]
            return piece.buckets if self._origin is None else piece.index

        return read

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any
    ) -> Any:
        """Numbers the rows anew, in their order."""
        kinds = len(self._kinds())
        # The specs have all kinds of one piece, then those of the next.
        tensors = [restored_tensors[kind::kinds] for kind in range(kinds)]
        with tf.device(self._part.device):
            if self._has_index:
                found = list(map(self._mine, self._pieces, *tensors))
            else:
                earlier, *lines = [tf.concat(each, 0) for each in tensors]
                found = [(earlier, _of_lines(*lines) if lines else None)]
            rows = tf.concat([some for some, _ in found], 0)
            # Row 0 is that of absent ids.
            numbers = tf.range(1, tf.shape(rows, tf.int64)[0] + 1)
            if self._origin is None:
                with tf.control_dependencies(self._fits(rows)):
                    return set_rows(self._part.handle, numbers, rows)
            columns = zip(*[known for _, known in found if known], strict=True)
            origins, *known = [tf.concat(each, 0) for each in columns]
            origin = origins[:2]
            checked = [*self._fits(rows), *self._origin.checks(origin, self._name)]
            with tf.control_dependencies(checked):
                written = set_rows(self._part.handle, numbers, rows)
            # In eager mode, an operation without a result is None.
            with tf.control_dependencies([written] if written is not None else []):
                self._shard.origin.set(origin)
                return self._shard.restore(numbers, KnownIds(*known))

    def _mine(
        self, piece: tuple[int, int, int], rows: tf.Tensor, index: tf.Tensor
    ) -> tuple[tf.Tensor, _Known | None]:
        """Returns the rows of a piece that this ps has, and what is known of them."""
        known = None if self._origin is None else _of_index(index)
        (_, low, high), (first, end) = piece, self._buckets
        if first <= low and high <= end:
            return rows, known

        def here(buckets: tf.Tensor) -> tf.Tensor:
            buckets = tf.cast(tf.ensure_shape(buckets, [None]), tf.int32)
            return (first <= buckets) & (buckets < end)

        mine = here(index if known is None else buckets_of(known.ids))
        rows = tf.boolean_mask(rows, mine)
        if known is None:
            return rows, None
        waits = here(buckets_of(known.waiting))
        masks = [mine] * 3 + [waits] * 2
        rest = [tf.boolean_mask(*each) for each in zip(known[1:], masks, strict=True)]
        return rows, _Known(known.origin, *rest)

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


class Factories(dict[str, Callable[[str], list[Any]]]):
    """Saves a table, or a slot of it, in pieces, and restores it from any pieces.

    Args:
        export: Of the table.
        parts: Its rows, or those of the slot, on each ps.
        origin: None for a slot.
    """

    def __init__(
        self, export: Export, parts: Sequence[Any], origin: Origin | None = None
    ) -> None:
        def saveables(name: str) -> list[Any]:
            return [
                _Saveable(export, i, name, part, origin) for i, part in enumerate(parts)
            ]

        super().__init__({export.pieces.attribute: saveables})

    # What restores asks by the name that the file has.
    def __contains__(self, attribute: object) -> bool:
        return str(attribute).startswith(Pieces.WHOLE)

    def __missing__(self, attribute: str) -> Callable[[str], list[Any]]:
        (saveables,) = self.values()
        return saveables


def _of_index(index: tf.Tensor) -> _Known:
    index = tf.ensure_shape(index, [None])
    origin, head, rest = tf.split(index, [2, 2, -1])
    is_followed, waiting = head[0], head[1]
    rows = (tf.size(rest, tf.int64) - 2 * waiting) // (1 + 2 * is_followed)
    known = rows * is_followed
    sizes = tf.stack([rows, known, known, waiting, waiting])
    ids, seen, count, *waits = tf.split(rest, sizes, num=5)
    # As if rows were looked up now, and never before.
    now = tf.fill([rows - known], tf.timestamp())
    seen = tf.concat([tf.bitcast(seen, tf.float64), now], 0)
    count = tf.bitcast(tf.cast(count, tf.int32), tf.float32)
    count = tf.concat([count, tf.zeros([rows - known])], 0)
    return _Known(origin, ids, seen, count, *waits)


def _of_lines(lines: tf.Tensor) -> _Known:
    """Returns what files of earlier versions have, of all buckets: lines of four numbers."""
    kind, *columns = tf.unstack(tf.reshape(lines, [-1, 4]), axis=1)
    lines = tf.stack(columns, axis=1)
    origin, of_rows, of_waiting = [
        tf.boolean_mask(lines, tf.equal(kind, each))
        for each in (_ORIGIN, _ROW, _WAITING)
    ]
    ids, seen, count = tf.unstack(of_rows, axis=1)
    count = tf.bitcast(tf.cast(count, tf.int32), tf.float32)
    waits = tf.unstack(of_waiting[:, :2], axis=1)
    return _Known(origin[0, :2], ids, tf.bitcast(seen, tf.float64), count, *waits)
