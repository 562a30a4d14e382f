"""What a sparse lookup moves between a worker and the ps, in bytes of tensors.

Both formulas are of one shard and one training step: what goes to the ps, what comes
back, and the gradient. Numbers, NumPy arrays and tensors are all welcome. What a
message costs beside its tensors is not counted; both ways send the same messages.

Over a table of `P` shards, a batch of `B` rows moves at most
`2 * P * B * dim * itemsize` bytes when it is summed on the ps, however many ids a row
has, and `2 * U * dim * itemsize` when its `U` different rows travel.
"""

from dataclasses import dataclass
from typing import Any


def plain_bytes(unique_ids: Any, *, row_bytes: int, id_bytes: int) -> Any:
    """What a lookup moves that takes each row to the worker, once.

    Args:
        unique_ids: Different rows that are looked up in the shard.
        row_bytes: Of one row: its width times the size of its dtype.
        id_bytes: Of one id on its way.

    Returns:
        Bytes: an id to the ps, a row to the worker, and its gradient to the ps.
    """
    return unique_ids * (id_bytes + 2 * row_bytes)


def aggregated_bytes(
    ids: Any, segments: Any, *, row_bytes: int, id_bytes: int, weight_bytes: int = 0
) -> Any:
    """What a lookup moves whose rows are summed on the ps.

    Args:
        ids: Ids that are looked up in the shard, repeats included.
        segments: Rows of the batch that have one of these ids or more.
        row_bytes: Of one row: its width times the size of its dtype.
        id_bytes: Of one id, or of the number of ids in a segment, on its way.
        weight_bytes: Of the weight of one id; 0 where there are no weights.

    Returns:
        Bytes: ids, weights and numbers of ids to the ps, a partial sum of each
        segment to the worker, and its gradient to the ps.
    """
    return ids * (id_bytes + weight_bytes) + segments * (id_bytes + 2 * row_bytes)


@dataclass(frozen=True)
class LookupBytes:
    """What lookups have moved, and would have moved, in bytes.

    Attributes:
        moved: What was moved, as the cost model counts it.
        plain: If every row had gone to the worker.
        aggregated: If every shard had summed its rows.
    """

    moved: int
    plain: int
    aggregated: int

    @property
    def saved(self) -> int:
        """Bytes that a plain lookup would have moved on top."""
        return self.plain - self.moved
