"""Which devices share their memory, so that nothing has to travel between them. Pure."""

from collections.abc import Sequence


def sharing_memory(devices: Sequence[str]) -> list[list[int]]:
    """Groups devices that share their memory: the CPUs of one process.

    >>> task = "/job:worker/replica:0/task:{}/device:{}"
    >>> sharing_memory([task.format(0, "CPU:0"), task.format(0, "CPU:1")])
    [[0, 1]]
    >>> sharing_memory([task.format(0, "CPU:0"), task.format(1, "CPU:0")])
    [[0], [1]]
    >>> sharing_memory([task.format(0, "GPU:0"), task.format(0, "GPU:1")])
    [[0], [1]]

    Args:
        devices: Their full names.

    Returns:
        The indices of the devices of each group, each in the order of the devices.
    """
    groups: dict[str, list[int]] = {}
    for i, device in enumerate(devices):
        process, _, kind = device.upper().partition("/DEVICE:")
        memory = process if kind.startswith("CPU:") else device
        groups.setdefault(memory, []).append(i)
    return list(groups.values())
