"""How much memory each task of a cluster uses, asked of the tasks themselves.

Every task reads its own `/proc/self/status`, so it works as well across hosts, with
Linux on them.
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
    """Returns the memory of the process of each task.

    Args:
        devices: By the name of a task, as `/job:ps/task:0`; `""` is this process.

    Returns:
        By the name of a task; None for a process that cannot tell.
    """
    return {name: _of_task(device) for name, device in devices.items()}


def _of_task(device: str) -> Memory | None:
    @tf.function
    def status() -> tf.Tensor:
        # A file reader goes by the size of a file, and this one's is 0; text is read
        # to its end, by the task that the function puts the dataset on.
        with tf.device(f"{device}/device:CPU:0"):
            lines = tf.data.TextLineDataset("/proc/self/status")
            return lines.batch(1000).get_single_element()

    try:
        # Called itself, TensorFlow warns of tracing it for each task.
        lines = [line.decode() for line in status.get_concrete_function()().numpy()]
    except tf.errors.NotFoundError:
        return None
    kib = {
        _FIELDS[key]: int(value.split()[0])
        for key, value in (line.split(":", 1) for line in lines)
        if key in _FIELDS
    }
    return Memory(**{name: 1024 * count for name, count in kib.items()})
