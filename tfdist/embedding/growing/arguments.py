"""What the arguments of a layer whose table grows may be, and where it may be built."""

from typing import Any

import tensorflow as tf

from tfdist._refusal import RefusalError
from tfdist.embedding import checks
from tfdist.embedding.growing.hashing import BUCKETS

_MOST = 2**31 - 1  # Rows of a tensor that is made by its shape.


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


def check_key_dtype(key_dtype: str) -> None:
    """Raises ValueError unless a table may have ids of this type."""
    if key_dtype not in ("int64", "string"):
        raise ValueError(f"key_dtype is int64 or string; received {key_dtype!r}")


def check_seed(seed: Any) -> None:
    """Raises ValueError unless a table may have this seed."""
    if not isinstance(seed, int) or abs(seed) >= 2**63:
        raise ValueError(
            f"seed is a whole number of 63 bits, or None; received {seed!r}"
        )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises RefusalError unless a table may grow under a strategy."""
    is_on_ps = hasattr(strategy, "num_ps")
    # A strategy with a driver of its own trains a model in each of several processes, even
    # if it counts as one replica, as LocalUpdateStrategy does.
    is_one_of_many = strategy.num_replicas_in_sync > 1 or hasattr(
        strategy, "fit_driver"
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
