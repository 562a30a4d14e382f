"""What became of a call on a worker of `launch.ray.Executor`."""

from typing import Any


class WorkerError(RuntimeError):
    """A function has failed on a worker; `__cause__` is its exception, if it came over.

    Attributes:
        rank: The worker's index.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class WorkerLostError(WorkerError):
    """The process of a worker, or its node, has died."""


def result(rank: int, address: str, asked: Any) -> Any:
    """Returns what a call has returned on a worker.

    Raises:
        WorkerError: If the function has failed.
        WorkerLostError: If the worker has died.
    """
    import ray

    name = f"worker {rank} on {address}"
    try:
        pickled, stack = ray.get(asked)
    except ray.exceptions.RayError as lost:
        why = next(iter(str(lost).splitlines()), "")
        raise WorkerLostError(
            rank, f"{name} was lost: its process or its node has died ({why})"
        ) from None
    if not stack:
        return ray.cloudpickle.loads(pickled)
    try:
        cause = ray.cloudpickle.loads(pickled)
    except Exception:
        cause = None  # Its class is not here.
    raise WorkerError(rank, f"{name} failed:\n\n{stack}") from cause
