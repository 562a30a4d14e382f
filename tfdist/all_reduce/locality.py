"""Which devices share memory or a process."""

from collections.abc import Sequence


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
    """Returns whether all devices, given by full name, belong to one process."""
    return len(set(map(_process, devices))) <= 1


def _process(device: str) -> str:
    return device.upper().partition("/DEVICE:")[0]
