"""The tensors of a growing table in a checkpoint: which rows each of them has.

A row belongs to the bucket of its id, regardless of the number of ps. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

BUCKETS = 256
"""Ids are dealt to ps by bucket, and saved by bucket: up to so many ps can share them."""

# Of a table's rows or those of a slot. A ps that restores some rows of a piece has the
# others in memory, too, until the end; but TensorFlow traces each piece in every save.
_BYTES_OF_PIECE = 64 << 20
_MOST = 32


def bounds_of(shard: int, num_shards: int) -> tuple[int, int]:
    """Returns the first bucket of a shard, and that after its last.

    >>> [bounds_of(shard, 3) for shard in range(3)]
    [(0, 86), (86, 171), (171, 256)]
    """
    first, end = (-(-BUCKETS * i // num_shards) for i in (shard, shard + 1))
    return first, end


@dataclass(frozen=True)
class Pieces:
    """Pieces of neighbouring buckets, as many for each ps of those that save.

    Attributes:
        num_shards: The number of ps.
        per_shard: The pieces of each.
        has_index: Whether each piece has its own index. Files of earlier versions have
            a piece for each bucket instead, and what is known of its rows.
    """

    WHOLE: ClassVar[str] = "VARIABLE_VALUE"

    num_shards: int
    per_shard: int
    has_index: bool = True

    @classmethod
    def of_size(cls, num_shards: int, size: int) -> "Pieces":
        """Returns those of a table with room for so many bytes on each ps.

        >>> [Pieces.of_size(2, size).per_shard for size in (1 << 20, 1 << 28, 1 << 40)]
        [1, 4, 16]
        """
        wanted = min(-(-size // _BYTES_OF_PIECE), _MOST // num_shards)
        return cls(num_shards, max(wanted, 1))

    @classmethod
    def named(cls, attribute: str) -> "Pieces":
        """Returns those whose attribute has a name.

        >>> Pieces.named(Pieces(10, 2).attribute)
        Pieces(num_shards=10, per_shard=2, has_index=True)

        Raises:
            ValueError: If there are none.
        """
        if attribute == cls.WHOLE:
            return cls(BUCKETS, 1, has_index=False)
        found = re.fullmatch(cls.WHOLE + r"_(\d+)_(\d+)", attribute)
        if not found:
            raise ValueError(
                f"a table that grows is saved as {Pieces(2, 1).attribute}, for example, "
                f"and this one as {attribute}: restore it with the version of tfdist "
                "that has written the checkpoint"
            )
        num_shards, per_shard = map(int, found.groups())
        return cls(num_shards, per_shard)

    @property
    def attribute(self) -> str:
        """The name of what a checkpoint has of a variable, which tells how it was saved.

        Who knows no pieces takes it for a variable that was saved whole, misses that in
        the file, and fails.
        """
        return f"{self.WHOLE}_{self.num_shards}_{self.per_shard}"

    def bounds(self) -> Iterable[tuple[int, int]]:
        """Yields the first bucket of each piece, and that after its last.

        >>> list(Pieces(2, 2).bounds())
        [(0, 64), (64, 128), (128, 192), (192, 256)]
        """
        for shard in range(self.num_shards):
            first, end = bounds_of(shard, self.num_shards)
            starts = [
                first + (end - first) * i // self.per_shard
                for i in range(self.per_shard + 1)
            ]
            yield from zip(starts, starts[1:], strict=False)

    def within(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Returns the number and the bounds of each piece that has some of these buckets.

        >>> Pieces(2, 2).within(100, 140)
        [(1, 64, 128), (2, 128, 192)]
        """
        return [
            (number, low, high)
            for number, (low, high) in enumerate(self.bounds())
            if low < end and high > first
        ]
