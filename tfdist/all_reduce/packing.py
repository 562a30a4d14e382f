"""Which tensors travel together, and where a bucket of them is cut. Pure decisions.

A gradient of a few bytes costs a message as a large one does, and one of a gigabyte
keeps all others waiting: tensors are gathered into buckets, and a bucket is cut into
the chunks of a schedule, and a chunk into segments that follow each other closely.
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

ALIGNED_ELEMENTS = 16
"""TensorFlow cuts a vector without a copy where the parts begin at 64 bytes."""

SEGMENT_SECONDS = 0.016
"""How long a link is to be busy with a segment. The last ones of a ring have it to
themselves; but a message costs processor time, of which a fast link leaves less."""

LEAST_SEGMENT_BYTES = 500_000
"""What still takes far longer than a message that is empty."""

MOST_SEGMENT_BYTES = 2_000_000
"""What two of may be under way."""


class Slice(NamedTuple):
    """The elements of a tensor from `start` up to, not including, `stop`."""

    tensor: int
    start: int
    stop: int


def buckets(
    keys: Sequence[Hashable], sizes: Sequence[int], bucket_bytes: float
) -> list[list[int]]:
    """Gathers tensors into buckets, in their order.

    A bucket is closed when it has reached its size; a tensor is never cut in two.

    >>> buckets(["float32"] * 4, [60, 60, 10, 500], bucket_bytes=100)
    [[0, 1], [2, 3]]

    Args:
        keys: What tensors have to agree on to share a bucket: their dtype.
        sizes: Their sizes, in bytes.
        bucket_bytes: The least size of a bucket, in bytes, but for the last of a key.

    Returns:
        The indices of the tensors of each bucket, the first closed first.
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


def segments_of(chunk_bytes: float, bandwidth: float) -> int:
    """Returns in how many segments a chunk of so many bytes is sent.

    >>> [segments_of(size, bandwidth=25e6) for size in (1e3, 1e6, 1e7)]
    [1, 2, 20]
    >>> [segments_of(size, bandwidth=125e6) for size in (1e3, 1e6, 1e7)]
    [1, 1, 5]

    Args:
        chunk_bytes: Its size.
        bandwidth: Of a link, in bytes a second.
    """
    of_link = bandwidth * SEGMENT_SECONDS
    segment_bytes = min(max(of_link, LEAST_SEGMENT_BYTES), MOST_SEGMENT_BYTES)
    return max(1, round(chunk_bytes / segment_bytes))


def cuts_of_chunks(num_elements: int, chunks: int, segments: int) -> list[int]:
    """Cuts a vector into chunks, and each of these into segments.

    Where a chunk begins does not depend on the segments, and so the order in which an
    element is summed does not either.

    >>> cuts_of_chunks(10, 2, 2)
    [0, 3, 5, 8, 10]

    Returns:
        Where the segments begin, and where the last one ends.
    """
    bounds = [0]
    for start, stop in itertools.pairwise(cuts(num_elements, chunks)):
        bounds += [start + cut for cut in cuts(stop - start, segments)[1:]]
    return bounds


def cuts(num_elements: int, parts: int) -> list[int]:
    """Cuts a vector into parts of nearly the same size.

    Large ones begin at multiples of `ALIGNED_ELEMENTS`.

    >>> cuts(10, 4)
    [0, 3, 6, 8, 10]

    Returns:
        Where the parts begin, and where the last one ends: `parts + 1` numbers.
    """
    unit = ALIGNED_ELEMENTS if num_elements >= 64 * parts * ALIGNED_ELEMENTS else 1
    units, rest = divmod(num_elements, unit)
    whole, extra = divmod(units, parts)
    bounds = [unit * (whole * i + min(i, extra)) for i in range(parts + 1)]
    bounds[-1] += rest
    return bounds


def slices_of_parts(sizes: Sequence[int], bounds: Sequence[int]) -> list[list[Slice]]:
    """Says which slices of tensors, laid end to end, each part of the whole is made of.

    >>> slices_of_parts([3, 4], [0, 2, 7])
    [[Slice(tensor=0, start=0, stop=2)], [Slice(tensor=0, start=2, stop=3), Slice(tensor=1, start=0, stop=4)]]

    Args:
        sizes: The number of elements of each tensor.
        bounds: Where the parts begin, and where the last one ends.
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
