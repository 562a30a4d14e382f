"""Files of Keras, `.keras` and `.weights.h5`, with a growing table's ids and rows.

The chief has all rows in memory meanwhile.
"""

from dataclasses import replace
from typing import Any

import numpy as np


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
