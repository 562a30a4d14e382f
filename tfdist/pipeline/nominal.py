"""What devices and links are taken for where nothing is measured. Pure.

Only the ratios of these numbers matter for where a model is cut: all times of a step grow
with the rows of a batch, except for the latency of a link.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tfdist.model_parallel.devices import Link, Links

ROWS = 32
"""Rows of a microbatch."""

NETWORK = Link(1.25e9, 50e-6)
"""Between processes: 10 Gbit/s."""


class Speed(NamedTuple):
    """How fast a device computes, and reaches its memory.

    Attributes:
        flops: Floating point operations per second.
        bandwidth: Bytes per second of its memory.
    """

    flops: float
    bandwidth: float


CPU, GPU = Speed(1e11, 1e10), Speed(1e13, 1e12)
WITHIN_CPU, WITHIN_GPUS = Link(CPU.bandwidth), Link(1e10, 10e-6)
"""Between the devices of one process: in memory, or by PCIe."""


def speed_of(devices: Sequence[str]) -> Speed:
    """Returns what each of the devices is taken for: a GPU if one is.

    >>> speed_of(["/job:worker/task:0/device:CPU:0"]) == CPU
    True
    """
    return GPU if any("GPU" in each for each in devices) else CPU


def links_of(devices: Sequence[str]) -> Links:
    """Returns the links between devices.

    >>> a, b, c = [f"/task:{i}/device:CPU:{j}" for i, j in ((0, 0), (0, 1), (1, 0))]
    >>> links = links_of([a, b, c])
    >>> links.of(a, b) == WITHIN_CPU, links.of(b, c) == NETWORK
    (True, True)

    Args:
        devices: Their full names.
    """
    within = WITHIN_GPUS if speed_of(devices) == GPU else WITHIN_CPU
    between = {
        (a, b): within
        for a in devices
        for b in devices
        if a.partition("/device:")[0] == b.partition("/device:")[0]
    }
    return Links(*NETWORK, between=between)
