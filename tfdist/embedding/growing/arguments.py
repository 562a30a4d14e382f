"""Checks of a growing layer's arguments, and of the strategy it is built under."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._support.errors import RefusalError
from tfdist.embedding import checks
from tfdist.embedding.growing.pieces import BUCKETS

_MOST = 2**31 - 1  # Rows of a tensor that is made by its shape.

# What the layers that people come from take, and what does the same here.
_INSTEAD = {
    "input_dim": "there is no vocabulary: max_rows= says for how many rows there is room",
    "embeddings_constraint": "it would read all rows that are reserved, in each step: "
    "apply keras.layers.UnitNormalization, for example, to the rows of the step",
    "embeddings_regularizer": "it would read all rows that are reserved, in each step: "
    "activity_regularizer= has the rows of the step",
    "mask_zero": "0 is an id like any other: call the next layer with "
    "mask=keras.ops.not_equal(ids, 0), or use DynamicEmbeddingBag(padding=0)",
    "lora_rank": "it adapts a table of a fixed size: use tfdist.embedding.Embedding",
    "lora_alpha": "it adapts a table of a fixed size: use tfdist.embedding.Embedding",
    "input_length": "any length will do, and keras.Input(shape) says which it is",
    "weights": "rows belong to ids: set them by upsert(ids, rows) once the layer is built",
    "partitioner": "rows are dealt to all ps by the hash of their ids",
    "partition_strategy": "rows are dealt to all ps by the hash of their ids",
    "max_norm": "apply keras.ops.clip or a layer of yours to the rows of the step",
    "aggregate": "each ps sends rows or sums, whichever are fewer bytes",
    "vocabulary": "training creates rows: use upsert(ids, rows) for those known before",
}


def check_positional(layer: str, output_dim: Any, others: tuple[Any, ...]) -> None:
    """Raises TypeError if more than `output_dim` is given by its position."""
    if not others:
        return
    received = f"{layer}{(output_dim, *others)}"
    if isinstance(others[0], int):
        # The habit of keras.layers.Embedding(input_dim, output_dim).
        raise TypeError(
            f"{layer} has no vocabulary size, since its table grows; received {received}. "
            f"Write {layer}({others[0]}, max_rows={output_dim}): the width of a row, and "
            "for how many rows there is room"
        )
    raise TypeError(
        f"{layer} takes output_dim by its position, and all else by its name; received "
        f"{received}"
    )


def check_names(layer: str, names: Iterable[str]) -> None:
    """Raises ValueError if another layer's argument is among these names."""
    if refused := [f"{name} ({_INSTEAD[name]})" for name in names if name in _INSTEAD]:
        raise ValueError(
            f"{layer} has no {'; no '.join(refused)}. Its arguments are those of "
            "tfdist.embedding.DynamicEmbedding and keras.layers.Layer"
        )


def checked_sizes(layer: str, output_dim: int, max_rows: int | None) -> int:
    """Checks the sizes of a table; returns `max_rows`.

    Raises:
        ValueError: If one is not positive, or it has no `max_rows`.
    """
    if max_rows is None:
        raise ValueError(
            f"{layer} needs max_rows, the number of rows to reserve on all ps together. "
            "Rows that nobody has take no memory: max_rows=50_000_000, for example"
        )
    checks.positive(output_dim=output_dim, max_rows=max_rows)
    return max_rows


def check_dtype(layer: str, dtype: str) -> None:
    """Raises ValueError unless rows may be of a dtype."""
    if not tf.as_dtype(dtype).is_floating:
        raise ValueError(
            f"the rows of {layer} are trained, so their dtype is a floating one, such as "
            f"float32; received dtype={dtype!r}. For the type of ids, use key_dtype="
        )


def check_key_dtype(key_dtype: str) -> None:
    """Raises ValueError unless a table may have ids of this type."""
    if key_dtype not in ("int64", "string"):
        raise ValueError(f"key_dtype is int64 or string; received {key_dtype!r}")


def check_seed(seed: Any) -> None:
    """Raises ValueError unless a table may have this seed."""
    if not isinstance(seed, int) or abs(seed) >= 2**63:
        raise ValueError(
            f"seed must be a whole number of 63 bits, or None; received {seed!r}"
        )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises RefusalError unless a table may grow under a strategy."""
    is_on_ps = hasattr(strategy, "num_ps")
    # A strategy with a driver of its own trains a model in each of several processes, even
    # if it counts as one replica, as LocalUpdateStrategy does.
    is_one_of_many = (
        strategy.num_replicas_in_sync > 1
        or hasattr(strategy, "fit_driver")
        or isinstance(strategy, tf.distribute.MirroredStrategy)  # Of one device.
    )
    if not is_on_ps and is_one_of_many:
        raise RefusalError(
            "a table that grows lives on parameter servers, or in one process; under "
            f"{type(strategy).__name__}, each replica would give ids other rows. Use "
            "tfdist.ParameterServerStrategy"
        )
    if is_on_ps and strategy.num_ps > BUCKETS:
        raise RefusalError(
            f"a table that grows can be on {BUCKETS} ps at most; there are "
            f"{strategy.num_ps}"
        )


def rows_of_each(layer: str, max_rows: int, num_ps: int) -> int:
    """Returns how many rows each ps has, with the one that absent ids read.

    Raises:
        ValueError: If a tensor cannot have as many.
    """
    rows = -(-max_rows // num_ps) + 1
    if rows > _MOST:
        raise ValueError(
            f"{layer} has room for {_MOST - 1} rows on each ps at most; "
            f"max_rows={max_rows} asks for {rows - 1} on each of {num_ps}"
        )
    return rows


def refusal_of_memory(
    layer: str, rows: int, output_dim: int, dtype: tf.DType
) -> RefusalError:
    """Returns the error for a table that one process has no memory for."""
    size = rows * output_dim * dtype.size
    return RefusalError(
        f"{layer}: this process cannot have {size:,} bytes for {rows:,} rows of {output_dim} "
        f"numbers ({dtype.name}), and needs as much again for each slot of the optimizer "
        "(SGD has none, Adagrad 1, Adam 2). In one process all max_rows take memory: "
        "reserve fewer, or use tfdist.ParameterServerStrategy, where a row takes memory "
        "once an id has it"
    )


def rows_to_set(rows: Any, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Returns rows that `upsert` was given.

    Raises:
        ValueError: If they have another shape, or are no numbers.
    """
    try:
        array = np.asarray(rows, dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"upsert takes rows of {dtype} of the shape {shape}: {error}"
        ) from error
    if array.shape != shape:
        raise ValueError(
            f"upsert takes rows of the shape {shape} for {shape[0]} ids; received "
            f"{array.shape}"
        )
    return array
