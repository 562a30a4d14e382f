"""Devices of the workers that compute steps. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

KIND = "GPU"
"""The type of the devices that are a replica each, if a worker has more than one."""

_WORKER = "/job:worker/replica:0/task:"
_DEVICE = re.compile(rf"{_WORKER}(\d+)/device:(\w+):\d+")


@dataclass(frozen=True)
class Replica:
    """A device of a worker, which computes one step after the other.

    Attributes:
        worker: The index of the worker.
        device: TensorFlow's name of the device; of the worker, if it has no choice.
    """

    worker: int
    device: str

    @property
    def name(self) -> str:
        """The index of the worker, and the device if it has a choice.

        >>> Replica(1, "/job:worker/replica:0/task:1/device:GPU:2").name
        '1 GPU:2'
        """
        _, _, device = self.device.partition("/device:")
        return f"{self.worker} {device}".rstrip()


def replicas_of(
    num_workers: int, devices: Iterable[str], kind: str = KIND
) -> tuple[Replica, ...]:
    """Returns the replicas of all workers, worker by worker.

    A worker that is not here yet is taken to have what the others have.

    >>> gpu = "/job:worker/replica:0/task:0/device:GPU:"
    >>> [replica.device[-5:] for replica in replicas_of(1, [gpu + "0", gpu + "1"])]
    ['GPU:0', 'GPU:1']
    >>> replicas_of(1, ["/job:worker/replica:0/task:0/device:CPU:0"])
    (Replica(worker=0, device='/job:worker/replica:0/task:0'),)

    Args:
        num_workers: The number of workers.
        devices: The names of the devices of the cluster.
        kind: The type of device that counts.

    Raises:
        ValueError: If the workers have different numbers of them.
    """
    counts: dict[int, int] = {}
    for name in devices:
        # The cluster has the devices of the ps and of this process, too.
        if found := _DEVICE.fullmatch(name):
            # Any device counts its worker in: one that has none of the kind counts 0.
            index, is_one = int(found[1]), found[2] == kind
            counts[index] = counts.get(index, 0) + is_one
    numbers = set(counts.values())
    if len(numbers) > 1:
        each = ", ".join(f"worker:{i} has {n}" for i, n in sorted(counts.items()))
        raise ValueError(
            f"all workers need the same number of {kind}s; {each}. Show each worker as "
            "many, by CUDA_VISIBLE_DEVICES or `launch.task --gpus`"
        )
    count = max(numbers, default=0)
    if count < 2:
        return tuple(Replica(i, f"{_WORKER}{i}") for i in range(num_workers))
    return tuple(
        Replica(i, f"{_WORKER}{i}/device:{kind}:{device}")
        for i in range(num_workers)
        for device in range(count)
    )
