"""Devices that share memory, which one of them reduces: nothing is sent.

The others read its result in place, as with `tf.distribute.ReductionToOneDevice`.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.all_reduce.bucket import size_bytes
from tfdist.all_reduce.packing import buckets
from tfdist.all_reduce.values import added, copied, divided

PACKED_BYTES = 32_000
"""Smaller tensors are concatenated: the copy takes less time than an operation each."""


def sharing_memory(devices: Sequence[str]) -> list[list[int]]:
    """Groups devices, given by full name, that share memory: the CPUs of one process.

    >>> task = "/job:worker/replica:0/task:{}/device:{}"
    >>> sharing_memory([task.format(0, "CPU:0"), task.format(0, "CPU:1")])
    [[0, 1]]
    >>> sharing_memory([task.format(0, "CPU:0"), task.format(1, "CPU:0")])
    [[0], [1]]
    >>> sharing_memory([task.format(0, "GPU:0"), task.format(0, "GPU:1")])
    [[0], [1]]
    """
    groups: dict[str, list[int]] = {}
    for i, device in enumerate(devices):
        is_cpu = "/DEVICE:CPU:" in device.upper()
        memory = _process(device) if is_cpu else device
        groups.setdefault(memory, []).append(i)
    return list(groups.values())


def in_one_process(devices: Sequence[str]) -> bool:
    """Returns True if all devices, given by full name, belong to one process."""
    return len(set(map(_process, devices))) <= 1


def _process(device: str) -> str:
    return device.upper().partition("/DEVICE:")[0]


def reduce_in_memory(
    per_device: Sequence[Sequence[Any]], devices: Sequence[str], mean: bool
) -> list[list[Any]]:
    """Sums the tensors of all devices on the first device.

    `per_device` is as in `AllReduce.reduce_tensors`, and so is what is returned.

    Cost: nothing is sent; `n` tensors are read from memory, and one is written.
    """
    keys = [_pack_of(i, value) for i, value in enumerate(per_device[0])]
    results: list[list[Any]] = [[None] * len(keys) for _ in devices]
    # No size limit: nothing is sent, so `buckets` only groups small values by dtype.
    for pack in buckets(keys, [0] * len(keys), math.inf):
        wholes = []
        for values, device in zip(per_device, devices, strict=True):
            with tf.device(device):
                wholes.append(_joined([values[i] for i in pack]))
        with tf.device(devices[0]):
            reduced = divided(added(wholes), len(devices)) if mean else added(wholes)
        like = [per_device[0][i] for i in pack]
        for values, device in zip(results, devices, strict=True):
            with tf.device(device):
                for i, value in zip(pack, _taken_apart(reduced, like), strict=True):
                    values[i] = value
    return results


def _pack_of(i: int, value: Any) -> Hashable:
    is_small = (
        not isinstance(value, tf.IndexedSlices)
        and value.shape.is_fully_defined()
        and size_bytes(value) < PACKED_BYTES
    )
    # A large value has a key that no other has, and so its own pack.
    return value.dtype.name if is_small else i


def _joined(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def _taken_apart(joined: Any, like: Sequence[Any]) -> list[Any]:
    if len(like) == 1:
        return [copied(joined)]
    parts = tf.split(joined, [value.shape.num_elements() for value in like])
    return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]
