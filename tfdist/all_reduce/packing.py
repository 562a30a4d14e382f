"""Buckets of tensors that travel together, and the places where buckets are split.

A gradient of a few bytes costs as many messages as a large one, and a gradient of a
gigabyte keeps all others waiting. So tensors are packed into buckets, a bucket is split
into the chunks of a schedule, and a chunk into segments.
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

ALIGNED_ELEMENTS = 16
"""TensorFlow slices a vector without a copy if the slices are aligned to 64 bytes."""


class Slice(NamedTuple):
    """The elements of a tensor from `start` up to, not including, `stop`."""

    tensor: int
    start: int
    stop: int


def buckets(
    keys: Sequence[Hashable], sizes: Sequence[int], bucket_bytes: float
) -> list[list[int]]:
    """Packs tensors into buckets, in order.

    A bucket is closed when it has reached its size. No tensor is split between buckets.
    Tensors share a bucket only if their keys, their dtypes, are equal. Buckets are
    lists of indices, in the order in which they close.

    >>> buckets(["float32"] * 4, [60, 60, 10, 500], bucket_bytes=100)
    [[0, 1], [2, 3]]
    """
    closed: list[list[int]] = []
    opened: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for i, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        opened.setdefault(key, []).append(i)
        filled[key] = filled.get(key, 0) + size
        if filled[key] >= bucket_bytes:
            closed.append(opened.pop(key))
            del filled[key]
    return closed + list(opened.values())


def cuts_of_chunks(num_elements: int, chunks: int, segments: int) -> list[int]:
    """Splits a vector into chunks, and each chunk into segments.

    Where a chunk begins does not depend on the number of segments. An element's chunk
    decides the order in which it is summed, and so its rounding. Returns where each
    segment begins, and where the last one ends.

    >>> cuts_of_chunks(10, 2, 2)
    [0, 3, 5, 8, 10]
    """
    bounds = [0]
    for start, stop in itertools.pairwise(cuts(num_elements, chunks)):
        bounds += [start + cut for cut in cuts(stop - start, segments)[1:]]
    return bounds


def cuts(num_elements: int, parts: int) -> list[int]:
    """Splits a vector into slices of nearly equal size.

    In large vectors, slices begin at multiples of `ALIGNED_ELEMENTS`. Returns where
    each slice begins, and where the last one ends.

    >>> cuts(10, 4)
    [0, 3, 6, 8, 10]
    """
    # Alignment makes some slices one unit larger. In vectors of this size, that is at
    # most 1/64 of a slice, so the chunks stay balanced.
    unit = ALIGNED_ELEMENTS if num_elements >= 64 * parts * ALIGNED_ELEMENTS else 1
    units, rest = divmod(num_elements, unit)
    whole, extra = divmod(units, parts)
    bounds = [unit * (whole * i + min(i, extra)) for i in range(parts + 1)]
    bounds[-1] += rest
    return bounds


def slices_of_parts(sizes: Sequence[int], bounds: Sequence[int]) -> list[list[Slice]]:
    """Returns which slices of the tensors each part of their concatenation consists of.

    Parts begin at `bounds`, and the last one ends at the last of these.

    >>> [[(*each,) for each in part] for part in slices_of_parts([3, 4], [0, 2, 7])]
    [[(0, 0, 2)], [(0, 2, 3), (1, 0, 4)]]
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    parts = []
    tensor = 0
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        slices = []
        while start < stop:
            if starts[tensor + 1] <= start:
                tensor += 1
                continue
            end = min(stop, starts[tensor + 1])
            slices.append(Slice(tensor, start - starts[tensor], end - starts[tensor]))
            start = end
        parts.append(slices)
    return parts
