"""The bytes of tensors that a sparse lookup moves between a worker and the ps.

Both formulas are for one shard and one training step: what is sent to the ps, what comes
back, and the gradient. They accept numbers, NumPy arrays and tensors. The overhead of
messages is not counted; both routes send the same messages.

With a table of `P` shards, a batch of `B` rows moves at most
`2 * P * B * dim * itemsize` bytes if it is summed on the ps, however many ids a row has,
and `2 * U * dim * itemsize` bytes if its `U` distinct rows are sent.
"""

from dataclasses import dataclass
from typing import Any


def plain_bytes(unique_ids: Any, *, row_bytes: int, id_bytes: int) -> Any:
    """Returns what a lookup moves if each distinct row is sent to the worker once.

    Args:
        unique_ids: The number of distinct rows that are looked up in the shard.
        row_bytes: The size of one row: its width times the size of its dtype.
        id_bytes: The size of one id as it is sent.

    Returns:
        Bytes: an id to the ps, a row to the worker, and its gradient to the ps.
    """
    return unique_ids * (id_bytes + 2 * row_bytes)


def aggregated_bytes(
    ids: Any, segments: Any, *, row_bytes: int, id_bytes: int, weight_bytes: int = 0
) -> Any:
    """Returns what a lookup moves if rows are summed on the ps.

    Args:
        ids: The number of ids that are looked up in the shard, repeats included.
        segments: The number of rows of the batch that have at least one of these ids.
        row_bytes: The size of one row: its width times the size of its dtype.
        id_bytes: The size of one id, or of the number of ids in a segment, as sent.
        weight_bytes: The size of an id's weight; 0 without weights.

    Returns:
        Bytes: ids, weights and numbers of ids to the ps, a partial sum per segment to
        the worker, and its gradient to the ps.
    """
    return ids * (id_bytes + weight_bytes) + segments * (id_bytes + 2 * row_bytes)


@dataclass(frozen=True)
class LookupBytes:
    """What lookups have moved, and would have moved on either route, in bytes.

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
        """The additional bytes that plain lookups would have moved."""
        return self.plain - self.moved
