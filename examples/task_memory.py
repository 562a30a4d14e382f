"""Memory usage of each task of a cluster, as reported by the tasks.

Every task reads its own `/proc/self/status`, so this works across Linux hosts too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

_FIELDS = {"VmRSS": "now", "VmHWM": "peak"}


class Memory(NamedTuple):
    """Resident memory of a process, in bytes."""

    now: int
    peak: int


def of_tasks(devices: Mapping[str, str]) -> dict[str, Memory | None]:
    """Returns the memory of each task's process.

    Args:
        devices: The device of each task by its name, such as `/job:ps/task:0`; `""` is
            this process.

    Returns:
        The memory of each task by its name; None if the process has no such file.
    """
    return {name: _of_task(device) for name, device in devices.items()}


def _of_task(device: str) -> Memory | None:
    @tf.function
    def status() -> tf.Tensor:
        # tf.io.read_file trusts the size of a file, which is 0 here. A text dataset
        # reads to the end, on the task on which the function places it.
        with tf.device(f"{device}/device:CPU:0"):
            lines = tf.data.TextLineDataset("/proc/self/status")
            return lines.batch(1000).get_single_element()

    try:
        # Calling `status` itself would make TensorFlow warn about retracing per task.
        lines = [line.decode() for line in status.get_concrete_function()().numpy()]
    except tf.errors.NotFoundError:
        return None
    kib = {
        _FIELDS[key]: int(value.split()[0])
        for key, value in (line.split(":", 1) for line in lines)
        if key in _FIELDS
    }
    return Memory(**{name: 1024 * count for name, count in kib.items()})
