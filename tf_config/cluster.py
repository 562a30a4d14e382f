"""`Task` and `Cluster`: the tasks of a cluster, and their addresses. Always valid."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_config.address import address_problem, split_address
from tf_config.errors import ClusterError, check_name, show

JOBS = ("chief", "ps", "worker", "evaluator")
"""Every job, in the order in which tasks are listed."""


@functools.total_ordering
@dataclass(frozen=True)
class Task:
    """One process of a cluster: its job, and its index within that job.

    Tasks sort in the order of `JOBS`, then by index.

    >>> task = Task.parse("ps:0")
    >>> task, str(task), task.device
    (Task(job='ps', index=0), 'ps:0', '/job:ps/task:0')

    Raises:
        ClusterError: If the job is unknown, or the index is not an int >= 0.
    """

    job: str
    index: int

    def __post_init__(self) -> None:
        check_name("job", self.job, JOBS)
        # bool is a subclass of int, and TensorFlow would read True as task 1.
        if isinstance(self.index, bool) or not isinstance(self.index, int):
            raise ClusterError(
                "a task index must be an integer, without quotes or a "
                f"decimal point, for example 0; received {show(self.index)}"
            )
        if self.index < 0:
            raise ClusterError(
                f"a task index must be at least 0; received {show(self.index)}"
            )

    @classmethod
    def parse(cls, text: str) -> "Task":
        """Parses a task from `JOB:INDEX`.

        Raises:
            ClusterError: If the text does not name a task.
        """
        match = re.fullmatch(r"([^:]*):(0|[1-9][0-9]{0,8})", text)
        if match is None:
            raise ClusterError(
                f"a task is written JOB:INDEX, for example ps:0; received {show(text)}"
            )
        return cls(match[1], int(match[2]))

    @property
    def device(self) -> str:
        """The prefix of the task's device names in TensorFlow."""
        return f"/job:{self.job}/task:{self.index}"

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Task):
            return NotImplemented
        rank, other_rank = JOBS.index(self.job), JOBS.index(other.job)
        return (rank, self.index) < (other_rank, other.index)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The address, `host:port`, of every task of every job.

    A cluster has one of three shapes: a chief with parameter servers and workers;
    workers that reduce gradients among themselves, with or without a chief; or only a
    chief. Each may have an evaluator in addition.

    >>> cluster = Cluster.from_hosts(chief="a:1", ps="b:1", worker="c:1,d:1")
    >>> [str(task) for task in cluster.tasks()]
    ['chief:0', 'ps:0', 'worker:0', 'worker:1']
    >>> cluster.address(Task("worker", 1))
    'd:1'

    Raises:
        ClusterError: If an address is malformed or used twice, or the jobs do not have
            one of the three shapes.
    """

    chief: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    evaluator: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for job in JOBS:
            addresses = _as_tuple(job, getattr(self, job))
            object.__setattr__(self, job, addresses)
        self._check_addresses()
        self._check_shape()

    @classmethod
    def from_dict(cls, jobs: Mapping[str, Any]) -> "Cluster":
        """Builds a cluster from each job's list of addresses.

        Raises:
            ClusterError: If the mapping is not a valid cluster.
        """
        if not isinstance(jobs, Mapping):
            raise ClusterError(
                "a cluster gives each job its list of addresses, for example "
                f'{{"worker": ["host:2222"]}}; received {show(jobs)}'
            )
        for job in jobs:
            check_name("job", job, JOBS)
        return cls(**jobs)

    @classmethod
    def from_hosts(
        cls,
        chief: str | Sequence[str] = (),
        worker: str | Sequence[str] = (),
        ps: str | Sequence[str] = (),
        evaluator: str | Sequence[str] = (),
    ) -> "Cluster":
        """Builds a cluster from a string `a:1,b:1`, or a sequence, for each job.

        Raises:
            ClusterError: If the hosts are not a valid cluster.
        """
        hosts = {"chief": chief, "ps": ps, "worker": worker, "evaluator": evaluator}
        return cls.from_dict({job: _split_hosts(hosts[job]) for job in hosts})

    @property
    def has_parameter_servers(self) -> bool:
        """True if the cluster has parameter servers (ps)."""
        return bool(self.ps)

    def jobs(self) -> tuple[str, ...]:
        """Returns the jobs that have a task, in the order of `JOBS`."""
        return tuple(job for job in JOBS if getattr(self, job))

    def as_dict(self) -> dict[str, list[str]]:
        """Returns the addresses of each job that has a task."""
        return {job: list(getattr(self, job)) for job in self.jobs()}

    def cluster_spec(self) -> dict[str, list[str]]:
        """Returns the argument of `tf.train.ClusterSpec`: no evaluator, unlike `as_dict`.

        The evaluator runs no server, so a chief would wait for it forever.
        """
        return {
            job: hosts for job, hosts in self.as_dict().items() if job != "evaluator"
        }

    def tasks(self) -> Iterator[Task]:
        """Yields every task: chief, ps, workers, evaluator."""
        for job, addresses in self.as_dict().items():
            for index in range(len(addresses)):
                yield Task(job, index)

    def address(self, task: Task) -> str:
        """Returns the `host:port` of a task.

        Raises:
            ClusterError: If the task is not in the cluster.
        """
        if task not in self:
            spans = [_span(job, len(hosts)) for job, hosts in self.as_dict().items()]
            raise ClusterError(
                f"{task} is not in the cluster, which has {', '.join(spans)}: "
                "name one of these, or add its address"
            )
        return getattr(self, task.job)[task.index]

    def __contains__(self, task: object) -> bool:
        return isinstance(task, Task) and task.index < len(getattr(self, task.job))

    def _check_addresses(self) -> None:
        owners: dict[tuple[str, int], Task] = {}
        for task in self.tasks():
            address = self.address(task)
            if problem := address_problem(address):
                raise ClusterError(f"the address of {task}, {show(address)}, {problem}")
            host, port = split_address(address)
            owner = owners.setdefault((host.lower(), port), task)
            if owner != task:
                raise ClusterError(
                    f"{owner} and {task} have the same address {show(address)}: "
                    "give each task its own port"
                )

    def _check_shape(self) -> None:
        for job in ("chief", "evaluator"):
            addresses = getattr(self, job)
            if len(addresses) > 1:
                raise ClusterError(
                    f"a cluster has one {job}; received {len(addresses)} addresses, "
                    f"{show(addresses)}: keep one"
                )
        if not (self.chief or self.worker or self.ps):
            raise ClusterError(
                "the cluster has no task that trains: give the address of a chief, "
                "or of at least one worker"
            )
        for job, purpose in (("chief", "coordinates"), ("worker", "computes")):
            if self.ps and not getattr(self, job):
                raise ClusterError(
                    f"the cluster has parameter servers and no {job}, the task that "
                    f"{purpose}: add the address of a {job}, or remove the ps"
                )


def _split_hosts(hosts: str | Sequence[str]) -> Sequence[str]:
    if isinstance(hosts, str):
        return hosts.split(",") if hosts else ()
    return hosts


def _as_tuple(job: str, addresses: Any) -> tuple[str, ...]:
    if not isinstance(addresses, (list, tuple)):
        raise ClusterError(
            f'the addresses of {job} are a list such as ["host:2222"]; '
            f"received {show(addresses)}"
        )
    return tuple(addresses)


def _span(job: str, count: int) -> str:
    return f"{job}:0 to {job}:{count - 1}" if count > 1 else f"{job}:0"
