"""Files of Keras, `.keras` and `.weights.h5`, with a growing table's ids and rows.

The chief has all rows in memory meanwhile. In one process, the index is saved beside them.
"""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding.growing.growing_shard import KnownIds


def save(layer: Any, store: Any) -> None:
    """Writes the table of a layer."""
    found = list(layer.export())
    none = np.zeros(0, np.int64), np.zeros((0, layer.output_dim))
    ids, rows = zip(none, *found, strict=True)
    store["ids"] = np.concatenate(ids)
    store["rows"] = np.concatenate(rows).astype(layer.variable_dtype)
    store["origin"] = replace(layer.origin, seed=layer.seed).numbers()
    if hasattr(layer, "index"):
        # An optimizer's slots are saved whole then, and by the rows' numbers.
        store["index"] = np.frombuffer(layer.index.serialize(), np.uint8)


def load(layer: Any, store: Any) -> None:
    """Replaces the table of a layer.

    Raises:
        InvalidArgumentError: If the file's table has another seed, or other ids.
        ValueError: If it has rows of another width, or too many.
    """
    ids, rows = np.asarray(store["ids"]), np.asarray(store["rows"])
    if rows.shape[1:] != (layer.output_dim,):
        raise ValueError(
            f"{layer.path}: the file has rows of {rows.shape[1]} numbers, and output_dim "
            f"is {layer.output_dim}: build the layer as it was saved"
        )
    if lacking := layer.table.without_room(ids):
        raise ValueError(
            f"{layer.path}: the file has {len(ids)} rows, and {lacking} of them find no "
            f"room in max_rows={layer.max_rows}: build the layer with more"
        )
    layer.table.set_origin(np.asarray(store["origin"]))
    if not hasattr(layer, "index"):
        layer.table.load(ids, rows)
        return
    of_file = None
    if "index" in store.keys():  # noqa: SIM118 - it is h5py's
        of_file = np.asarray(store["index"]).tobytes()
    layer.index.load(ids, of_file)
    layer.table.write(ids, rows)


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
        rows, used = found.pop("rows"), found.pop("used", 0)
        shard.restore(rows, KnownIds(**found), used)

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
        known = KnownIds(tf.constant(ids), tf.timestamp(), 0.0, none, none)
        shard.restore(numbers, known)


def _read(index: bytes) -> dict[str, tf.Tensor]:
    with np.load(io.BytesIO(index)) as file:
        return {name: tf.constant(file[name]) for name in file.files}
