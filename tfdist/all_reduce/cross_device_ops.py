"""All-reduces for `tf.distribute.MirroredStrategy(cross_device_ops=...)`."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.all_reduce import exchange
from tfdist.all_reduce.packing import buckets, cuts, slices_of_parts
from tfdist.all_reduce.schedule import SCHEDULES

BUCKET_BYTES = 4 << 20
SEGMENT_BYTES = 1 << 20
WIRE_DTYPES = (tf.bfloat16, tf.float16)


class AllReduce(tf.distribute.CrossDeviceOps):
    """Sums gradients over devices by one of the schedules of `tfdist.all_reduce`.

    Tensors are packed into buckets, in the order in which a backward pass makes them
    ready: the last variable's first. A bucket leaves when its tensors are there, while
    the rest of the backward pass still runs. Slices (`tf.IndexedSlices`) are gathered,
    not summed, as TensorFlow's own ops do.

    What is not an all-reduce, a reduction to one device or a broadcast, is left to
    `tf.distribute.ReductionToOneDevice`.

    Args:
        algorithm: One of `SCHEDULES`.
        bucket_bytes: The least size of a bucket, in bytes.
        segment_bytes: The size of the parts that a chunk is sent in, in bytes. The
            next device adds a part up while the one after it is on its way.
        wire_dtype: `"bfloat16"` or `"float16"`: what float32 and float64 travel as, in
            half of the bytes or a quarter. They are added up in their own dtype.

    Raises:
        ValueError: If there is no such algorithm, or a size is not positive.
        TypeError: If `wire_dtype` is neither of the two.
    """

    def __init__(
        self,
        algorithm: str,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        wire_dtype: Any = None,
    ) -> None:
        super().__init__()
        if algorithm not in SCHEDULES:
            raise ValueError(
                f"algorithm is one of {', '.join(SCHEDULES)}; received {algorithm!r}"
            )
        for name, value in (
            ("bucket_bytes", bucket_bytes),
            ("segment_bytes", segment_bytes),
        ):
            if not value > 0:
                raise ValueError(f"{name} is a number of bytes > 0; received {value}")
        self.algorithm = algorithm
        self.bucket_bytes = bucket_bytes
        self.segment_bytes = segment_bytes
        self.wire_dtype = _wire_dtype(wire_dtype)
        self.buckets_exchanged = 0
        """How many buckets were put into graphs, or exchanged at once in eager mode."""

    def reduce_implementation(
        self,
        reduce_op: tf.distribute.ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: Any,
    ) -> Any:
        """Reduces one value; see the base class."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any,
    ) -> list[Any]:
        """Reduces several values; see the base class.

        Raises:
            ValueError: If a device has more than one of the replicas.
            TypeError: If values cannot be added up.
        """
        pairs = list(value_destination_pairs)
        results: list[Any] = [None] * len(pairs)
        dense: dict[tuple[str, ...], list[int]] = {}
        # The last layer's gradients are ready first.
        for i, (value, destinations) in reversed(list(enumerate(pairs))):
            devices = _tf.devices_of(value)
            if set(devices) != set(_tf.devices_of(destinations)):
                one_device = tf.distribute.ReductionToOneDevice()
                results[i] = one_device.reduce(reduce_op, value, destinations, options)
                continue
            _check(value, devices)
            if isinstance(value.values[0], tf.IndexedSlices):
                reduced = _gathered_slices(value.values, devices)
                results[i] = _tf.mirrored(_divided(reduced, reduce_op))
            else:
                dense.setdefault(devices, []).append(i)
        for devices, indices in dense.items():
            values = {i: pairs[i][0].values for i in indices}
            for i, reduced in self._reduce_dense(values, devices).items():
                results[i] = _tf.mirrored(_divided(reduced, reduce_op))
        return results

    def _gather_implementation(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        one_device = tf.distribute.ReductionToOneDevice()
        return _tf.gather(one_device, per_replica_value, destinations, axis, options)

    def _reduce_dense(
        self, values: dict[int, Sequence[tf.Tensor]], devices: Sequence[str]
    ) -> dict[int, list[tf.Tensor]]:
        """The sums of values, by number; each is a list of one tensor a device."""
        known = [i for i in values if values[i][0].shape.is_fully_defined()]
        sizes = [_size_bytes(values[i][0]) for i in known]
        groups = buckets([values[i][0].dtype for i in known], sizes, self.bucket_bytes)
        packed = [[known[j] for j in group] for group in groups]
        # Only their elements are added up: of what shape is known when it runs.
        packed += [[i] for i in values if i not in known]
        reduced: dict[int, list[tf.Tensor]] = {}
        for bucket in packed:
            per_device = list(zip(*(values[i] for i in bucket), strict=True))
            with tf.name_scope(self.algorithm):
                sums = self._reduce_bucket(per_device, devices)
            self.buckets_exchanged += 1
            for i, per_replica in zip(bucket, zip(*sums, strict=True), strict=True):
                reduced[i] = list(per_replica)
        return reduced

    def _reduce_bucket(
        self, per_device: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
    ) -> list[list[tf.Tensor]]:
        """The sums of the tensors of a bucket, `sums[d][i]` of `per_device[d][i]`."""
        schedule = SCHEDULES[self.algorithm](len(devices))
        chunk_bytes = sum(map(_size_bytes, per_device[0])) / schedule.num_chunks
        segments = max(1, math.ceil(chunk_bytes / self.segment_bytes))
        dtype = per_device[0][0].dtype
        wire_dtype = self.wire_dtype if dtype in (tf.float32, tf.float64) else None
        chunks = []
        for tensors, device in zip(per_device, devices, strict=True):
            with tf.device(device):
                parts = _packed(tensors, schedule.num_chunks * segments)
            chunks.append(list(_batched(parts, segments)))
        sums = exchange.all_reduce(schedule, chunks, devices, wire_dtype)
        unpacked = []
        for tensors, device, summed in zip(per_device, devices, sums, strict=True):
            with tf.device(device):
                unpacked.append(_unpacked(sum(summed, []), tensors))
        return unpacked


class RingAllReduce(AllReduce):
    """Sums gradients around a ring: a reduce-scatter, then an all-gather.

    `n` devices in a circle each send to the next and receive from the one before, so
    every link is used all the time, in one direction, with as many bytes.

    Cost: `2 (n - 1)` steps, in which each device sends and receives `2 (n - 1) / n` of
    the size of the tensors, the least that is possible (Patarasuk and Yuan, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations", Journal of Parallel and
    Distributed Computing 69(2), 2009, section 3).

        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tfdist.RingAllReduce()
        )

    Args:
        **options: Those of `AllReduce`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("ring", **options)


def _wire_dtype(wire_dtype: Any) -> tf.DType | None:
    if wire_dtype is None:
        return None
    try:
        dtype = tf.as_dtype(wire_dtype)
    except TypeError:
        dtype = None
    if dtype not in WIRE_DTYPES:
        allowed = " or ".join(repr(each.name) for each in WIRE_DTYPES)
        raise TypeError(f"wire_dtype is {allowed}, or None; received {wire_dtype!r}")
    return dtype


def _check(value: Any, devices: Sequence[str]) -> None:
    repeated = [device for device in devices if devices.count(device) > 1]
    if repeated:
        raise ValueError(
            f"{devices.count(repeated[0])} replicas are on {repeated[0]}, and each has "
            "a device of its own: give MirroredStrategy different devices"
        )
    dtype = value.values[0].dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        raise TypeError(f"values of {dtype.name} cannot be added up: cast them first")


def _size_bytes(tensor: tf.Tensor) -> int:
    """The size, in bytes; 0 for a shape that is known only when it runs."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _batched(parts: list[tf.Tensor], size: int) -> Iterator[list[tf.Tensor]]:
    for start in range(0, len(parts), size):
        yield parts[start : start + size]


def _packed(tensors: Sequence[tf.Tensor], parts: int) -> list[tf.Tensor]:
    """Lays tensors end to end and cuts the whole into parts."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    sizes = [each.shape.num_elements() for each in flat]
    if None in sizes:
        whole = tf.concat(flat, 0)
        bounds = tf.size(whole) * tf.range(parts + 1) // parts
        return [whole[bounds[i] : bounds[i + 1]] for i in range(parts)]
    return _recut(flat, sizes, cuts(sum(sizes), parts))


def _unpacked(parts: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Takes apart what `_packed` has put together."""
    sizes = [tensor.shape.num_elements() for tensor in like]
    if None in sizes:
        sizes = [tf.size(tensor) for tensor in like]
        flat = tf.split(tf.concat(parts, 0), sizes, num=len(sizes))
        return [
            tf.reshape(each, tf.shape(tensor))
            for each, tensor in zip(flat, like, strict=True)
        ]
    part_sizes = [part.shape.num_elements() for part in parts]
    bounds = list(itertools.accumulate(sizes, initial=0))
    flat = _recut(parts, part_sizes, bounds)
    return [
        tf.reshape(each, tensor.shape) for each, tensor in zip(flat, like, strict=True)
    ]


def _recut(
    flat: Sequence[tf.Tensor], sizes: Sequence[int], bounds: Sequence[int]
) -> list[tf.Tensor]:
    """Cuts vectors, laid end to end, at these bounds."""
    recut = []
    for slices in slices_of_parts(sizes, bounds):
        pieces = [flat[i][start:stop] for i, start, stop in slices]
        if len(pieces) == 1:
            recut.append(pieces[0])
        else:
            recut.append(tf.concat(pieces, 0) if pieces else flat[0][:0])
    return recut


def _gathered_slices(
    values: Sequence[tf.IndexedSlices], devices: Sequence[str]
) -> list[tf.IndexedSlices]:
    """The slices of all devices, on each of them: a sum that is not yet added up."""
    rows = exchange.all_gather([each.values for each in values], devices)
    indices = exchange.all_gather([each.indices for each in values], devices)
    gathered = []
    for device, value, of_rows, of_indices in zip(
        devices, values, rows, indices, strict=True
    ):
        with tf.device(device):
            gathered.append(
                tf.IndexedSlices(
                    tf.concat(of_rows, 0), tf.concat(of_indices, 0), value.dense_shape
                )
            )
    return gathered


def _divided(reduced: Sequence[Any], reduce_op: tf.distribute.ReduceOp) -> list[Any]:
    """The means of sums, if these are asked for, on the device of each."""
    if reduce_op != tf.distribute.ReduceOp.MEAN:
        return list(reduced)
    means = []
    for each in reduced:
        with tf.device(each.device):
            if isinstance(each, tf.IndexedSlices):
                rows = each.values / len(reduced)
                means.append(tf.IndexedSlices(rows, each.indices, each.dense_shape))
            else:
                means.append(each / len(reduced))
    return means
