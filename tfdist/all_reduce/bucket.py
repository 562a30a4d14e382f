"""Sums a bucket of tensors: concatenates, splits into chunks, exchanges, unpacks."""

import itertools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.all_reduce import executor
from tfdist.all_reduce.packing import cuts, cuts_of_chunks, slices_of_parts
from tfdist.all_reduce.schedule import TransferSchedule

# The C library returns a block of more than 32 MB to the system when it is freed, and
# every page of the next one faults. A sum of 81 MB between two processes of one machine
# takes half the time in parts of 4 to 27 MB, which are all equally fast.
PART_BYTES = 16_000_000


def size_bytes(tensor: tf.Tensor) -> int:
    """Returns the size of a tensor in bytes; 0 if it has no static shape."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def sum_bucket(
    schedule: TransferSchedule,
    per_device: Sequence[Sequence[tf.Tensor]],
    devices: Sequence[str],
    segments: int,
    wire_dtype: tf.DType | None = None,
    turns: executor.Turns | None = None,
) -> list[list[tf.Tensor]]:
    """Sums the tensors of a bucket over devices, on all devices.

    `per_device[d][i]` is tensor i of device d, all of one dtype; so are the sums.

    Cost: that of the schedule (see `tfdist.all_reduce.cost`), and a copy where a chunk
    spans several tensors, or a tensor several segments.
    """
    chunks = []
    for tensors, device in zip(per_device, devices, strict=True):
        with tf.device(device):
            parts = _packed(tensors, schedule.num_chunks, segments)
        starts = range(0, len(parts), segments)
        chunks.append([parts[start : start + segments] for start in starts])
    sums = executor.all_reduce(schedule, chunks, devices, wire_dtype, turns)
    unpacked = []
    for tensors, device, summed in zip(per_device, devices, sums, strict=True):
        with tf.device(device):
            parts = list(itertools.chain.from_iterable(summed))
            unpacked.append(_unpacked(parts, tensors))
    return unpacked


def sum_in_parts(
    tensors: Sequence[tf.Tensor | tf.IndexedSlices],
    add_up: Callable[[list], Sequence[tf.Tensor | tf.IndexedSlices]],
    part_bytes: int = PART_BYTES,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Sums tensors by `add_up`, those of more than `part_bytes` in parts of equal size.

    Cost: a copy of each sum that is joined; the parts are slices and copy nothing.
    """
    numbers = [
        1 if isinstance(each, tf.IndexedSlices) else _parts_of(each, part_bytes)
        for each in tensors
    ]
    parts = []
    for tensor, number in zip(tensors, numbers, strict=True):
        if number == 1:
            parts.append(tensor)
        else:
            flat = tf.reshape(tensor, [-1])
            bounds = cuts(tensor.shape.num_elements(), number)
            parts += [flat[start:stop] for start, stop in itertools.pairwise(bounds)]
    sums = iter(add_up(parts))
    joined = []
    for tensor, number in zip(tensors, numbers, strict=True):
        own = list(itertools.islice(sums, number))
        whole = own[0] if number == 1 else tf.reshape(tf.concat(own, 0), tensor.shape)
        joined.append(whole)
    return joined


def _parts_of(tensor: tf.Tensor, part_bytes: int) -> int:
    return max(1, math.ceil(size_bytes(tensor) / part_bytes))


def _packed(
    tensors: Sequence[tf.Tensor], chunks: int, segments: int
) -> list[tf.Tensor]:
    """Concatenates tensors and splits the result into the segments of chunks."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    sizes = [each.shape.num_elements() for each in flat]
    if None in sizes:
        # The bounds are computed when the graph runs, and so is a copy for each slice.
        whole = tf.concat(flat, 0)
        # int64, because `size * i` may exceed int32 even if the size does not.
        size = tf.size(whole, tf.int64)
        parts = chunks * segments
        bounds = [size * i // parts for i in range(parts + 1)]
        return [whole[start:stop] for start, stop in itertools.pairwise(bounds)]
    return _recut(flat, sizes, cuts_of_chunks(sum(sizes), chunks, segments))


def _unpacked(parts: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Reverses `_packed`."""
    sizes = [tensor.shape.num_elements() for tensor in like]
    if None in sizes:
        of_tensors = [tf.size(tensor, tf.int64) for tensor in like]
        flat = tf.split(tf.concat(parts, 0), of_tensors, num=len(of_tensors))
        shapes = [tf.shape(tensor) for tensor in like]
    else:
        of_parts = [part.shape.num_elements() for part in parts]
        flat = _recut(parts, of_parts, list(itertools.accumulate(sizes, initial=0)))
        shapes = [tensor.shape for tensor in like]
    return [tf.reshape(each, shape) for each, shape in zip(flat, shapes, strict=True)]


def _recut(
    flat: Sequence[tf.Tensor], sizes: Sequence[int], bounds: Sequence[int]
) -> list[tf.Tensor]:
    """Splits the concatenation of vectors at these bounds.

    It copies only where a slice spans several vectors.
    """
    recut = []
    for slices in slices_of_parts(sizes, bounds):
        found = [flat[i][start:stop] for i, start, stop in slices]
        if len(found) == 1:
            recut.append(found[0])
        else:
            # With fewer elements than parts, some parts are empty.
            recut.append(tf.concat(found, 0) if found else flat[0][:0])
    return recut
