"""The values of an all-reduce, checked; dense ones and `tf.IndexedSlices` alike."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.all_reduce.executor import all_gather
from tfdist.all_reduce.half_precision import to_wire


def check_devices(devices: Sequence[str]) -> None:
    """Checks that no device is repeated."""
    for device in devices:
        if devices.count(device) > 1:
            raise ValueError(
                f"{devices.count(device)} values are on device {device!r}, and each "
                "must be on a separate device: give the strategy different devices, "
                "and reduce in its scope"
            )


def check_lists(per_device: Sequence[Sequence[Any]], devices: Sequence[str]) -> None:
    """Checks that each device, one at least, has a list of equally many tensors."""
    numbers = [len(tensors) for tensors in per_device]
    if not devices or len(numbers) != len(devices) or len(set(numbers)) > 1:
        raise ValueError(
            "there must be one list of tensors per device, all of equal length, and at "
            f"least one device; received lists of {numbers} tensors for {len(devices)} "
            "devices"
        )


def alike(values: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns the values of one tensor, either all dense or all slices.

    Raises:
        TypeError: If values of their dtype cannot be added up.
        ValueError: If they differ in dtype or shape.
    """
    sliced = [isinstance(value, tf.IndexedSlices) for value in values]
    if any(sliced) and not all(sliced):
        return alike([_dense(value) for value in values], devices)
    first = values[0]
    dtype = first.dtype
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        raise TypeError(f"values of {dtype.name} cannot be added up: cast them first")
    for value, device in zip(values, devices, strict=True):
        fits = value.dtype == dtype and (
            any(sliced) or value.shape.is_compatible_with(first.shape)
        )
        if not fits:
            raise ValueError(
                "values must have the same dtype and shape on every device; "
                f"received {dtype.name} {first.shape} of {devices[0]} and "
                f"{value.dtype.name} {value.shape} of {device}"
            )
    return list(values)


def _dense(value: Any) -> tf.Tensor:
    # On the value's device, so that it is not sent elsewhere to be converted.
    with tf.device(value.device):
        return tf.convert_to_tensor(value)


def added(values: Sequence[Any]) -> Any:
    """Returns the sum of values. Slices are concatenated: repeated rows stay repeated."""
    if len(values) == 1:
        return values[0]
    if not isinstance(values[0], tf.IndexedSlices):
        return tf.add_n(values)
    rows = tf.concat([value.values for value in values], 0)
    indices = tf.concat([value.indices for value in values], 0)
    return tf.IndexedSlices(rows, indices, values[0].dense_shape)


def gathered(
    values: Sequence[tf.IndexedSlices],
    devices: Sequence[str],
    wire_dtype: tf.DType | None,
) -> list[tf.IndexedSlices]:
    """Sends the slices of all devices to all, and returns their sum for each device.

    Cost: that of `all_gather`, twice.
    """
    sent = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(device):
            sent.append(to_wire(value.values, wire_dtype))
    rows = all_gather(sent, devices)
    indices = all_gather([value.indices for value in values], devices)
    of_devices = []
    for d, (value, device) in enumerate(zip(values, devices, strict=True)):
        with tf.device(device):
            of_devices.append(
                tf.IndexedSlices(
                    tf.cast(tf.concat(rows[d], 0), value.dtype),
                    tf.concat(indices[d], 0),
                    value.dense_shape,
                )
            )
    return of_devices


def divided(value: Any, by: int) -> Any:
    """Returns the mean of `by` values, given their sum."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(value.values / by, value.indices, value.dense_shape)
    return value / by


def copied(value: Any) -> Any:
    """Returns a copy of the value on the current device."""
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def given_out(
    sums: Sequence[Any], device: str, devices: Sequence[str], by: int
) -> list[list[Any]]:
    """Returns copies on some devices of sums on one, divided by a number before.

    Once per group, not once per device.
    """
    if by != 1:
        with tf.device(device):
            sums = [divided(value, by) for value in sums]
    copies = []
    for each in devices:
        with tf.device(each):
            # A Mirrored value has the devices of its tensors: each needs one.
            copies.append([copied(value) for value in sums])
    return copies


def devices_of(value: Any) -> tuple[str, ...]:
    """Returns the devices of a value's replicas, or those of a destination."""
    devices = _tf.devices_of(value)
    if all(devices) and len(set(devices)) == len(devices):
        return devices
    # A value that a replica was given, rather than computed, may be on any device. While
    # a function is traced, its arguments are on none.
    replicas = tuple(tf.distribute.get_strategy().extended.worker_devices)
    return replicas if len(replicas) == len(devices) else devices
