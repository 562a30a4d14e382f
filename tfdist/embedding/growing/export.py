"""The saved parts of a table that grows, and the rows that a save finds."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.embedding.growing.growing_shard import GrowingShard
from tfdist.embedding.growing.hashing import buckets_of
from tfdist.embedding.growing.pieces import Pieces, bounds_of


class Piece(NamedTuple):
    """Rows that are saved: their numbers, their buckets, and what is known of them."""

    rows: tf.Tensor
    buckets: tf.Tensor
    index: tf.Tensor


class Export:
    """The saved parts of a table on all ps, from a function that is traced once.

    Attributes:
        shards: Those of the table.
        pieces: What a checkpoint has of it.
    """

    def __init__(self, shards: Sequence[GrowingShard], parts: Sequence[Any]) -> None:
        self.shards = shards
        size = max(part.shape.num_elements() * part.dtype.size for part in parts)
        self.pieces = Pieces.of_size(len(shards), size)
        self._compute = tf.function(self._found, autograph=False)

    def _found(self) -> list[list[Piece]]:
        return [
            _found_pieces(shard, self.pieces.within(*bounds_of(i, len(self.shards))))
            for i, shard in enumerate(self.shards)
        ]

    def __call__(self, is_now: bool) -> list[list[Piece]]:
        """Returns the pieces on each ps, the same for a table and its slots in one save.

        A checkpoint does not wait for a step that takes too long, and such a step may
        create rows meanwhile: asked again, a slot would have rows of other ids.

        Args:
            is_now: Whether the function that saves runs once, and now. TensorFlow traces
                it anew for each save, so it gets what this one has returned.
        """
        of_tables: dict[Export, list[list[Piece]]] = {}
        if not tf.executing_eagerly():
            # Kept by the graph, since a tensor keeps its graph alive.
            kept = tf.compat.v1.get_default_graph().get_collection_ref(__name__)
            kept[:] = kept or [of_tables]
            of_tables = kept[0]
        if self not in of_tables:
            scope = tf.init_scope() if is_now else contextlib.nullcontext()
            # Not on the ps whose tensor is asked for: it knows no other ps.
            with scope, tf.device(None):
                of_tables[self] = self._compute()
        return of_tables[self]


def _found_pieces(
    shard: GrowingShard, bounds: list[tuple[int, int, int]]
) -> list[Piece]:
    with tf.device(shard.device):
        # In the order of the rows: to collect them in that of their buckets takes several
        # times as long.
        of_rows = _dealt(bounds, *shard.in_use())
        of_waiting = _dealt(bounds, *shard.waiting())
        found = []
        for (ids, rows), waits in zip(of_rows, of_waiting, strict=True):
            known = shard.known(rows) if shard.is_followed else ()
            head = [int(shard.is_followed), tf.size(waits[0], tf.int64)]
            index = [shard.origin.read(), tf.stack(head), ids, *map(_bits, known)]
            buckets = tf.cast(buckets_of(ids), tf.uint8)
            found.append(Piece(rows, buckets, tf.concat([*index, *waits], 0)))
        return found


def _dealt(
    bounds: list[tuple[int, int, int]], ids: tf.Tensor, numbers: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the ids of each piece, and their numbers."""
    if len(bounds) == 1:
        return [(ids, numbers)]
    sizes = [high - low for _, low, high in bounds]
    of_buckets = tf.constant(np.repeat(np.arange(len(bounds)), sizes), tf.int32)
    pieces = tf.gather(of_buckets, buckets_of(ids) - bounds[0][1])
    dealt = (tf.dynamic_partition(each, pieces, len(bounds)) for each in (ids, numbers))
    return list(zip(*dealt, strict=True))


def _bits(numbers: tf.Tensor) -> tf.Tensor:
    bits = tf.bitcast(numbers, tf.int64 if numbers.dtype.size == 8 else tf.int32)
    return tf.cast(bits, tf.int64)
