"""The bytes of tensors that a sparse lookup moves between a worker and the ps.

Both formulas are for one shard and one training step: what is sent to the ps, what comes
back, and the gradient. They accept numbers, NumPy arrays and tensors. The overhead of
messages, with the number of ids that each begins with, is not counted; both routes send
the same messages.

With a table of `P` shards, a batch of `B` rows moves at most
`2 * P * B * dim * itemsize` bytes if it is summed on the ps, however many ids a row has,
and `2 * U * dim * itemsize` bytes if its `U` distinct rows are sent.
"""

from dataclasses import dataclass
from typing import Any


def plain_bytes(unique_ids: Any, *, row_bytes: int, id_bytes: int) -> Any:
    """Returns the bytes if each distinct row is sent to the worker once.

    An id to the ps, a row to the worker, and its gradient to the ps.
    """
    return unique_ids * (id_bytes + 2 * row_bytes)


def aggregated_bytes(
    ids: Any, segments: Any, *, row_bytes: int, id_bytes: int, weight_bytes: int = 0
) -> Any:
    """Returns the bytes if rows are summed on the ps.

    Ids, weights and numbers of ids to the ps, a partial sum per segment to the worker,
    and its gradient to the ps. Repeated ids count; a segment is a row of the batch with
    at least one of the ids.
    """
    return ids * (id_bytes + weight_bytes) + segments * (id_bytes + 2 * row_bytes)


@dataclass(frozen=True)
class LookupBytes:
    """The bytes that lookups have moved, and would have moved on either route.

    Attributes:
        moved: The bytes moved, as the cost model counts them.
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
