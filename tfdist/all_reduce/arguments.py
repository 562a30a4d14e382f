"""Checks the arguments of an all-reduce."""

from collections.abc import Sequence
from numbers import Real
from typing import Any


def checked_bytes(name: str, value: float | None) -> float | None:
    """Returns a size in bytes, above 0, or None."""
    if value is not None and not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of bytes or None; received {value!r}")
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be a number of bytes above 0; received {value}")
    return value


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
