"""Devices of the workers with a replica each: all GPUs, or else CPUs."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdist._support.errors import Error


class UnequalDevicesError(Error, ValueError):
    """The workers do not have the same number of devices."""


def check_equal(counts: Mapping[str, int]) -> None:
    """Checks that workers have equally many devices, given the number of each.

    Raises:
        UnequalDevicesError: If they do not.
    """
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{task}: {count}" for task, count in counts.items())
        raise UnequalDevicesError(
            f"every worker needs the same number of devices; received {listed}. "
            "Set CUDA_VISIBLE_DEVICES, or the number of logical devices, so that "
            "all have as many as the worker with the fewest"
        )


def of_this_worker(worker_device: str) -> tuple[tuple[str, ...], str]:
    """Returns the devices of this process, given its task's, and their kind."""
    kind = "GPU" if _logical_devices(worker_device, "GPU") else "CPU"
    count = len(_logical_devices(worker_device, kind))
    return tuple(f"{worker_device}/device:{kind}:{i}" for i in range(count)), kind


def of_workers(workers: Sequence[str]) -> tuple[str, ...]:
    """Returns all GPUs of the workers, or the CPU of each if there are none.

    Raises:
        UnequalDevicesError: If they have unequal numbers of GPUs.
    """
    gpus = {task: _logical_devices(task, "GPU") for task in workers}
    check_equal({task: len(found) for task, found in gpus.items()})
    if gpus[workers[0]]:
        return tuple(gpu for found in gpus.values() for gpu in found)
    return tuple(f"{task}/device:CPU:0" for task in workers)


def _logical_devices(task: str, kind: str) -> list[str]:
    here = tf.DeviceSpec.from_string(task)
    names = [each.name for each in tf.config.list_logical_devices(kind)]
    specs = {name: tf.DeviceSpec.from_string(name) for name in names}
    return [
        name
        for name, spec in specs.items()
        if (spec.job, spec.task) == (here.job, here.task)
    ]
