"""All-reduces for `tf.distribute.MirroredStrategy(cross_device_ops=...)`."""

import logging
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.all_reduce.bucket import size_bytes, sum_bucket
from tfdist.all_reduce.cost import Network, choose
from tfdist.all_reduce.exchange import Turns
from tfdist.all_reduce.in_memory import reduce_in_memory
from tfdist.all_reduce.locality import in_one_process, sharing_memory
from tfdist.all_reduce.measure import measure_network
from tfdist.all_reduce.packing import buckets, segments_of
from tfdist.all_reduce.schedule import build, checked_algorithm
from tfdist.all_reduce.values import added, alike, copied, divided, gathered
from tfdist.all_reduce.wire import checked_wire_dtype

_log = logging.getLogger("tfdist")

BUCKET_BYTES = 2_000_000
NETWORK = Network(
    latency=2e-4,
    bandwidth=125e6,
    seconds_per_reduced_byte=2e-10,
    seconds_per_message=2e-5,
    processor_seconds_per_message=1.6e-4,
)
"""Links of 1 Gbit/s, and messages as TensorFlow exchanges them, as measured between 4
and 8 namespaces of one machine with 2 cores (docs/algorithms.md)."""

SUM = tf.distribute.ReduceOp.SUM
MEAN = tf.distribute.ReduceOp.MEAN


class AllReduce(tf.distribute.ReductionToOneDevice):
    """Sums gradients over devices, by the fastest algorithm or by one of your choice.

        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tfdist.AllReduce()
        )

    Tensors are packed into buckets, in the order in which a backward pass makes them
    ready: the last variable's first. A bucket leaves when its tensors are there, while
    the rest of the backward pass still runs. All devices end with the same bits.

    Without an `algorithm`, CPU devices of one process first add up what they have: they
    share their memory, so nothing has to be sent. If there are more processes, one
    device of each then takes part in the exchange, and each bucket goes by the
    algorithm that is the fastest for its size and the number of processes by
    `tfdist.all_reduce.cost.choose`.

    The network between processes is measured when it is needed first, in a few seconds,
    unless it is given.

    With an `algorithm`, every device takes part, and the same input gives the same bits
    again. `tf.add_n`, which adds up in shared memory, takes three values or more in an
    order that depends on which of them is needed elsewhere, and a network that is
    measured again may be found to favour another algorithm.

    Slices (`tf.IndexedSlices`) are gathered, not summed, as TensorFlow's own ops do.
    What is not an all-reduce is left to `tf.distribute.ReductionToOneDevice`: a
    reduction to one device, a gather, and what `MirroredStrategy` does not hand on to
    any `cross_device_ops`, int32 and everything under XLA.

    Cost: see `tfdist.all_reduce.cost`.

    Args:
        algorithm: One of `SCHEDULES`; None chooses.
        network: What connects the processes, to choose by: algorithms, and the size
            of segments. None: what `tfdist.measure_network` finds; in a graph of
            `tf.compat.v1`, where nothing runs before the session does, `NETWORK`.
        bucket_bytes: The least size of a bucket, in bytes. None: 2 MB between processes;
            in one process, where the fewest operations win, there is no limit.
        segment_bytes: The size of the parts that a chunk is sent in, in bytes. The
            next device adds a part up while the one after it is on its way. None: what
            keeps a link busy for 16 ms, but from 500 KB to 2 MB; in one process,
            chunks stay whole.
        wire_dtype: `"bfloat16"` or `"float16"`: what float32 and float64 travel as, in
            half of the bytes or a quarter. They are added up in their own dtype. A value
            that is too large for it fails (tf.errors.InvalidArgumentError).

    Raises:
        ValueError: If there is no such algorithm, or a size is not positive.
        TypeError: If `wire_dtype` is neither of the two, or an argument of another type.
    """

    def __init__(
        self,
        algorithm: str | None = None,
        *,
        network: Network | None = None,
        bucket_bytes: float | None = None,
        segment_bytes: float | None = None,
        wire_dtype: Any = None,
    ) -> None:
        super().__init__()
        if network is not None and not isinstance(network, Network):
            raise TypeError(
                f"network is a tfdist.Network, or None; received {network!r}"
            )
        self.algorithm = None if algorithm is None else checked_algorithm(algorithm)
        self.network = network
        self._measured: dict[tuple[str, ...], Network] = {}
        self.bucket_bytes = _checked_bytes("bucket_bytes", bucket_bytes)
        self.segment_bytes = _checked_bytes("segment_bytes", segment_bytes)
        self.wire_dtype = checked_wire_dtype(wire_dtype)

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
        meeting: dict[tuple[str, ...], list[int]] = {}
        for i, (value, destinations) in enumerate(pairs):
            devices = _devices_of(value)
            if set(devices) == set(_devices_of(destinations)):
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
            per_device: `per_device[d][i]`: of each device, its tensors or
                `tf.IndexedSlices`, of equal dtypes and shapes on all devices.
            devices: The names of the devices.
            reduce_op: SUM or MEAN.

        Returns:
            The sums or means, of the form of `per_device`. The mean of integers is
            float64.

        Raises:
            ValueError: If a device is repeated or missing, or tensors do not agree.
            TypeError: If values cannot be added up.
        """
        if reduce_op not in (SUM, MEAN):
            raise ValueError(f"reduce_op is SUM or MEAN; received {reduce_op!r}")
        devices = [tf.DeviceSpec.from_string(each).to_string() for each in devices]
        _check_devices(devices)
        _check_lists(per_device, devices)
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
        results: list[list[Any]] = [[] for _ in devices]
        for group, device, values in zip(groups, meeting, reduced, strict=True):
            if reduce_op == MEAN:
                with tf.device(device):
                    values = [divided(value, len(devices)) for value in values]
            for d in group:
                with tf.device(devices[d]):
                    results[d] = [copied(value) for value in values]
        return results

    def _groups(self, devices: Sequence[str]) -> list[list[int]]:
        """Which devices add up what they have before the first of them sends it."""
        if self.algorithm is None:
            return sharing_memory(devices)
        return [[d] for d in range(len(devices))]

    def _exchanged(
        self, per_device: Sequence[Sequence[Any]], devices: Sequence[str]
    ) -> list[list[Any]]:
        """The sums over devices that send each other what they have."""
        sums: list[list[Any]] = [[None] * len(values) for values in per_device]
        dense = []
        # The last layer's gradients are ready first.
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
        # What has a shape only when it runs travels alone.
        alone = [[i] for i in range(len(tensors)) if i not in known]
        return [[known[j] for j in bucket] for bucket in packed] + alone

    def _sum_bucket(
        self,
        per_device: Sequence[Sequence[tf.Tensor]],
        devices: Sequence[str],
        turns: Turns,
    ) -> list[list[tf.Tensor]]:
        size = sum(map(size_bytes, per_device[0]))
        algorithm = self.algorithm or choose(
            size, len(devices), self.network_between(devices)
        )
        schedule = build(algorithm, len(devices))
        segments = self._segments(size / schedule.num_chunks, devices)
        with tf.name_scope(algorithm):
            return sum_bucket(
                schedule, per_device, devices, segments, self.wire_dtype, turns
            )

    def _segments(self, chunk_bytes: float, devices: Sequence[str]) -> int:
        if self.segment_bytes is not None:
            return max(1, math.ceil(chunk_bytes / self.segment_bytes))
        if in_one_process(devices):
            return 1
        return segments_of(chunk_bytes, self.network_between(devices).bandwidth)

    def network_between(self, devices: Sequence[str]) -> Network:
        """What connects the devices: as given, or measured, once.

        Args:
            devices: Their full names.
        """
        if self.network is not None:
            return self.network
        if in_one_process(devices):
            return NETWORK
        key = tuple(devices)
        if key not in self._measured:
            with tf.init_scope():
                if not tf.executing_eagerly():
                    return NETWORK
                self._measured[key] = measure_network(devices)
            _log.info("between %d devices: %s", len(devices), self._measured[key])
        return self._measured[key]


class RingAllReduce(AllReduce):
    """Sums gradients around a ring: a reduce-scatter, then an all-gather.

    `n` devices in a circle each send to the next and receive from the one before, so
    every link is used all the time, in one direction, with as many bytes.

        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tfdist.RingAllReduce()
        )

    Cost: `2 (n - 1)` steps, in which each device sends and receives `2 (n - 1) / n` of
    the size of the tensors, the least that is possible (Patarasuk and Yuan, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations", Journal of Parallel and
    Distributed Computing 69(2), 2009).

    Args:
        network: What connects the processes, as in `AllReduce`.
        bucket_bytes: The least size of a bucket, as in `AllReduce`.
        segment_bytes: The size of the parts that a chunk is sent in, as there.
        wire_dtype: `"bfloat16"`, `"float16"`, or None, as there.
    """

    def __init__(
        self,
        *,
        network: Network | None = None,
        bucket_bytes: float | None = None,
        segment_bytes: float | None = None,
        wire_dtype: Any = None,
    ) -> None:
        super().__init__(
            "ring",
            network=network,
            bucket_bytes=bucket_bytes,
            segment_bytes=segment_bytes,
            wire_dtype=wire_dtype,
        )


def _checked_bytes(name: str, value: float | None) -> float | None:
    if value is not None and not isinstance(value, Real):
        raise TypeError(f"{name} is a number of bytes, or None; received {value!r}")
    if value is not None and not value > 0:
        raise ValueError(f"{name} is a number of bytes above 0; received {value}")
    return value


def _devices_of(value: Any) -> tuple[str, ...]:
    """The devices of the replicas of a value, or of where it shall go."""
    devices = _tf.devices_of(value)
    if all(devices) and len(set(devices)) == len(devices):
        return devices
    # What a replica was given, unlike what it has computed, may be anywhere; while a
    # function is traced, its arguments are nowhere.
    replicas = tuple(tf.distribute.get_strategy().extended.worker_devices)
    return replicas if len(replicas) == len(devices) else devices


def _check_lists(per_device: Sequence[Sequence[Any]], devices: Sequence[str]) -> None:
    numbers = [len(tensors) for tensors in per_device]
    if not devices or len(numbers) != len(devices) or len(set(numbers)) > 1:
        raise ValueError(
            "each device, of one or more, has a list of as many tensors as the others; "
            f"received lists of {numbers} tensors for {len(devices)} devices"
        )


def _check_devices(devices: Sequence[str]) -> None:
    for device in devices:
        if devices.count(device) > 1:
            raise ValueError(
                f"{devices.count(device)} values are on device {device!r}, and each "
                "needs a device of its own: give the strategy different devices, and "
                "reduce in its scope"
            )
