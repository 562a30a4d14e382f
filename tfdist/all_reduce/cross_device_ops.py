"""All-reduces for `tf.distribute.MirroredStrategy(cross_device_ops=...)`."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.wire_dtype import checked_wire_dtype
from tfdist.all_reduce.bucket import size_bytes, sum_bucket
from tfdist.all_reduce.executor import Turns
from tfdist.all_reduce.half_precision import WIRE_DTYPES
from tfdist.all_reduce.in_memory import in_one_process, reduce_in_memory, sharing_memory
from tfdist.all_reduce.packing import buckets
from tfdist.all_reduce.schedule import build, checked_algorithm
from tfdist.all_reduce.values import (
    added,
    alike,
    check_devices,
    check_lists,
    devices_of,
    gathered,
    given_out,
)

STAR_BYTES = 32_000
"""The largest bucket that goes to one device and back; larger ones go around the ring.

Measured between 4 and 8 hosts, on links of 200 Mbit/s and 1 Gbit/s and faster ones
(docs/algorithms.md). Among the sizes tried, 32 KB is the largest at which a call with
the star takes less time than one with the ring on all of them. At the next, 256 KB, it
takes up to seven times as long.
"""

# Small enough that buckets leave while the backward pass still runs.
BUCKET_BYTES = 2_000_000

# A device adds one segment up while it receives the next. Each costs a message. Rings of 4
# hosts and 25 MB take as long with 500 KB to 2 MB, to 2%, at 200 Mbit/s and at 1 Gbit/s.
SEGMENT_BYTES = 1_000_000

SUM = tf.distribute.ReduceOp.SUM
MEAN = tf.distribute.ReduceOp.MEAN


def choose(size_bytes: int) -> str:
    """Returns the algorithm for a bucket of this size between processes."""
    return "reduce_then_broadcast" if size_bytes <= STAR_BYTES else "ring"


class AllReduce(tf.distribute.ReductionToOneDevice):
    """Sums gradients over devices, by an algorithm that suits their size or a given one.

        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tfdist.AllReduce()
        )

    Tensors are packed into buckets in the order in which a backward pass produces them:
    the last variable's gradient first. A bucket is sent as soon as its tensors exist,
    while the rest of the backward pass still runs. All devices end bit-identical.

    Without an `algorithm`, the CPU devices of a process first sum what they have. They
    share memory, so nothing is sent. If there are several processes, one device of each
    then takes part in the exchange. A bucket of up to 32 KB, whose bytes hardly matter,
    is summed on one device, in the fewest messages; a larger one goes around the ring,
    which loads all links alike.

    With an `algorithm`, every device takes part, and equal inputs give equal bits.
    Without one they may not: `tf.add_n`, which sums in shared memory, adds three or more
    values in an order that depends on which of them are needed elsewhere.

    Slices (`tf.IndexedSlices`) are gathered, not summed, as in TensorFlow's own ops.
    Reductions to one device and gathers, which are no all-reduce, are left to
    `tf.distribute.ReductionToOneDevice`. `MirroredStrategy` passes neither int32 nor
    anything under XLA to any `cross_device_ops`.

    Cost: see `tfdist.all_reduce.cost`.

    Args:
        algorithm: One of `SCHEDULES`; None to choose by size.
        bucket_bytes: The minimum size of a bucket, in bytes. None: 2 MB between
            processes; unlimited in one process, where the fewest operations win.
        segment_bytes: The size of the segments that a chunk is sent in, in bytes. The
            next device adds one segment up while it receives the next. None: 1 MB; in
            one process, chunks stay whole.
        wire_dtype: `"bfloat16"` or `"float16"`: what float32 and float64 are sent as, in
            half or a quarter of the bytes. They are added up in their own dtype. A value
            that is too large for it fails (tf.errors.InvalidArgumentError).

    Raises:
        ValueError: If there is no such algorithm, a size is not positive, or `wire_dtype`
            is another one.
        TypeError: If another argument is of another type.
    """

    def __init__(
        self,
        algorithm: str | None = None,
        *,
        bucket_bytes: float | None = None,
        segment_bytes: float | None = None,
        wire_dtype: Any = None,
    ) -> None:
        super().__init__()
        self.algorithm = None if algorithm is None else checked_algorithm(algorithm)
        self.bucket_bytes = _checked_bytes("bucket_bytes", bucket_bytes)
        self.segment_bytes = _checked_bytes("segment_bytes", segment_bytes)
        name = checked_wire_dtype(wire_dtype, WIRE_DTYPES)
        self.wire_dtype = None if name is None else tf.as_dtype(name)

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
            ValueError: If two replicas are on one device.
            TypeError: If the values cannot be added up.
        """
        pairs = list(value_destination_pairs)
        results: list[Any] = [None] * len(pairs)
        meeting: dict[tuple[str, ...], list[int]] = {}
        for i, (value, destinations) in enumerate(pairs):
            devices = devices_of(value)
            if set(devices) == set(devices_of(destinations)):
                meeting.setdefault(devices, []).append(i)
            else:
                one_device = tf.distribute.ReductionToOneDevice()
                results[i] = one_device.reduce(reduce_op, value, destinations, options)
        for devices, indices in meeting.items():
            replicas = [pairs[i][0].values for i in indices]
            per_device = list(zip(*replicas, strict=True))
            reduced = self.reduce_tensors(per_device, devices, reduce_op)
            for i, values in zip(indices, zip(*reduced, strict=True), strict=True):
                results[i] = _tf.mirrored(values)
        return results

    def reduce_tensors(
        self,
        per_device: Sequence[Sequence[Any]],
        devices: Sequence[str],
        reduce_op: tf.distribute.ReduceOp = SUM,
    ) -> list[list[Any]]:
        """Reduces tensors over devices, on all devices. It needs no strategy.

        Args:
            per_device: `per_device[d][i]`: for each device, its tensors or
                `tf.IndexedSlices`, of equal dtypes and shapes on all devices.
            devices: The names of the devices.
            reduce_op: SUM or MEAN.

        Returns:
            The sums or means, in the structure of `per_device`. The mean of integers is
            float64.

        Raises:
            ValueError: If a device is repeated or missing, or if tensors differ in dtype
                or shape.
            TypeError: If the values cannot be added up.
        """
        if reduce_op not in (SUM, MEAN):
            raise ValueError(f"reduce_op must be SUM or MEAN; received {reduce_op!r}")
        # `/cpu:0` and `/device:CPU:0` are one device: compare devices by one spelling.
        devices = [tf.DeviceSpec.from_string(each).to_string() for each in devices]
        check_devices(devices)
        check_lists(per_device, devices)
        of_tensors = [
            alike(replicas, devices) for replicas in zip(*per_device, strict=True)
        ]
        groups = self._groups(devices)
        if len(groups) == 1:
            per_device = list(zip(*of_tensors, strict=True))
            return reduce_in_memory(per_device, devices, reduce_op == MEAN)
        meeting = [devices[group[0]] for group in groups]
        reduced = []
        for group, device in zip(groups, meeting, strict=True):
            with tf.device(device):
                reduced.append([added([each[d] for d in group]) for each in of_tensors])
        reduced = self._exchanged(reduced, meeting)
        by = len(devices) if reduce_op == MEAN else 1
        results: list[list[Any]] = [[] for _ in devices]
        for group, device, values in zip(groups, meeting, reduced, strict=True):
            whole = given_out(values, device, [devices[d] for d in group], by)
            for d, copies in zip(group, whole, strict=True):
                results[d] = copies
        return results

    def _groups(self, devices: Sequence[str]) -> list[list[int]]:
        """Returns the groups that sum locally; the first of each then exchanges."""
        if self.algorithm is None:
            return sharing_memory(devices)
        return [[d] for d in range(len(devices))]

    def _exchanged(
        self, per_device: Sequence[Sequence[Any]], devices: Sequence[str]
    ) -> list[list[Any]]:
        """Returns the sums over devices that send each other their values."""
        sums: list[list[Any]] = [[None] * len(values) for values in per_device]
        dense = []
        # A backward pass produces the last layer's gradients first.
        for i in reversed(range(len(sums[0]))):
            replicas = [values[i] for values in per_device]
            if not isinstance(replicas[0], tf.IndexedSlices):
                dense.append(i)
                continue
            slices = gathered(replicas, devices, self.wire_dtype)
            for of_device, value in zip(sums, slices, strict=True):
                of_device[i] = value
        turns = Turns(len(devices))
        for bucket in self._buckets([per_device[0][i] for i in dense], devices):
            indices = [dense[j] for j in bucket]
            tensors = [[values[i] for i in indices] for values in per_device]
            summed = self._sum_bucket(tensors, devices, turns)
            for of_device, values in zip(sums, summed, strict=True):
                for i, value in zip(indices, values, strict=True):
                    of_device[i] = value
        return sums

    def _buckets(
        self, tensors: Sequence[tf.Tensor], devices: Sequence[str]
    ) -> list[list[int]]:
        bucket_bytes = self.bucket_bytes or (
            math.inf if in_one_process(devices) else BUCKET_BYTES
        )
        known = [i for i, each in enumerate(tensors) if each.shape.is_fully_defined()]
        dtypes = [tensors[i].dtype for i in known]
        sizes = [size_bytes(tensors[i]) for i in known]
        packed = buckets(dtypes, sizes, bucket_bytes)
        # Without a static shape, a tensor's size is unknown: it gets its own bucket.
        alone = [[i] for i in range(len(tensors)) if i not in known]
        return [[known[j] for j in bucket] for bucket in packed] + alone

    def _sum_bucket(
        self,
        per_device: Sequence[Sequence[tf.Tensor]],
        devices: Sequence[str],
        turns: Turns,
    ) -> list[list[tf.Tensor]]:
        size = sum(map(size_bytes, per_device[0]))
        algorithm = self.algorithm or choose(size)
        schedule = build(algorithm, len(devices))
        segments = self._segments(size / schedule.num_chunks, devices)
        with tf.name_scope(algorithm):
            return sum_bucket(
                schedule, per_device, devices, segments, self.wire_dtype, turns
            )

    def _segments(self, chunk_bytes: float, devices: Sequence[str]) -> int:
        """Returns how many segments a chunk is sent in."""
        if self.segment_bytes is None and in_one_process(devices):
            return 1
        return max(1, math.ceil(chunk_bytes / (self.segment_bytes or SEGMENT_BYTES)))


def _checked_bytes(name: str, value: float | None) -> float | None:
    """Returns a size in bytes, above 0, or None."""
    if value is not None and not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of bytes or None; received {value!r}")
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be a number of bytes above 0; received {value}")
    return value


class RingAllReduce(AllReduce):
    """Sums gradients around a ring: a reduce-scatter, then an all-gather.

    The `n` devices form a circle. Each sends to the next and receives from the previous
    one, so every link is always busy, in one direction, with equally many bytes.

        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tfdist.RingAllReduce()
        )

    Cost: `2 (n - 1)` steps, in which each device sends and receives `2 (n - 1) / n`
    times the size of the tensors, the minimum (Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", Journal of Parallel and
    Distributed Computing 69(2), 2009).

    Args:
        bucket_bytes: The minimum size of a bucket, as in `AllReduce`.
        segment_bytes: The size of the segments of a chunk, as in `AllReduce`.
        wire_dtype: `"bfloat16"`, `"float16"` or None, as in `AllReduce`.
    """

    def __init__(
        self,
        *,
        bucket_bytes: float | None = None,
        segment_bytes: float | None = None,
        wire_dtype: Any = None,
    ) -> None:
        super().__init__(
            "ring",
            bucket_bytes=bucket_bytes,
            segment_bytes=segment_bytes,
            wire_dtype=wire_dtype,
        )
