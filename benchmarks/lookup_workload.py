"""Batches of ids, and the predicted traffic of looking them up.

Needs no TensorFlow, so a whole grid takes about a minute.
"""

import dataclasses
from functools import cache

import numpy as np

from tfdist.embedding import cost

ROUTES = ("stock", "plain", "aggregated", "chosen")
ITEM_BYTES = ID_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Workload:
    """A table, and the batches of lookups.

    Attributes:
        num_ps: The shards of the table, one per ps, with the `mod` layout.
        dim: The length of a row, in float32 values.
        ids_per_row: Ids per example.
        zipf: The id of rank r is drawn in proportion to `r ** -zipf`.
        num_rows: The rows of the table.
        batch_size: Examples per step.
    """

    num_ps: int
    dim: int
    ids_per_row: int
    zipf: float
    num_rows: int
    batch_size: int

    def batches(self, count: int, seed: int = 0) -> np.ndarray:
        """Returns ids, int64 of `[count, batch_size, ids_per_row]`."""
        random = np.random.default_rng(seed)
        drawn = random.random((count, self.batch_size, self.ids_per_row))
        ranks = np.searchsorted(_cumulative(self.num_rows, self.zipf), drawn)
        return _shuffled(self.num_rows)[ranks]

    def bytes(self, ids: np.ndarray) -> dict[str, int]:
        """Returns the predicted traffic of a training step.

        Args:
            ids: The ids of one batch, `[batch_size, ids_per_row]`.

        Returns:
            Bytes on each route; `stock` sends int64 ids.
        """
        row_bytes = self.dim * ITEM_BYTES
        totals = dict.fromkeys(ROUTES, 0)
        for shard in range(self.num_ps):
            mine = ids % self.num_ps == shard
            unique_ids = np.unique(ids[mine]).size
            plain = cost.plain_bytes(unique_ids, row_bytes=row_bytes, id_bytes=ID_BYTES)
            aggregated = cost.aggregated_bytes(
                int(mine.sum()),
                int(mine.any(axis=1).sum()),
                row_bytes=row_bytes,
                id_bytes=ID_BYTES,
            )
            totals["stock"] += cost.plain_bytes(
                unique_ids, row_bytes=row_bytes, id_bytes=8
            )
            totals["plain"] += plain
            totals["aggregated"] += aggregated
            totals["chosen"] += min(plain, aggregated)
        return totals


@cache
def _cumulative(num_rows: int, zipf: float) -> np.ndarray:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -zipf
    sums = np.cumsum(weights)
    return sums / sums[-1]


@cache
def _shuffled(num_rows: int) -> np.ndarray:
    """The ids by rank, shuffled so that frequent ids are spread over all shards."""
    return np.random.default_rng(1).permutation(num_rows)
