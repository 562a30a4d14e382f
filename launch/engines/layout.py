"""Layouts of jobs: the host of each task, and its surroundings. Pure decisions."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.engines.hosts import Host
from launch.engines.record import Record
from launch.job.job import Job
from launch.job.plan import tasks_of
from launch.job.tunnel import LOOPBACK, TunnelEnd
from launch.secure import mode
from tf_config import Cluster, Task, contract

_EXAMPLE_PORT, _EXAMPLE_INNER_PORT = 2222, 10_000
_ORDER = ("ps", "worker", "chief", "evaluator")


@dataclass(frozen=True)
class Layout:
    """The tasks of a cluster on hosts.

    Attributes:
        hosts: The hosts.
        addresses: The addresses under which the hosts reach each other.
        where: The index of the host of each task.
    """

    hosts: Sequence[Host]
    addresses: Sequence[str]
    where: Mapping[Task, int]

    @classmethod
    def of(
        cls, hosts: Sequence[Host], addresses: Sequence[str], counts: Mapping[str, int]
    ) -> "Layout":
        """Lays out a cluster with `counts` tasks of each job; see `assign`."""
        links = [host.link for host in hosts]
        return cls(hosts, addresses, assign(tasks_of(counts), links))

    @property
    def used(self) -> list[int]:
        """The hosts that have a task."""
        return sorted(set(self.where.values()))

    @property
    def num_tasks(self) -> Mapping[int, int]:
        """The number of tasks of each host."""
        return Counter(self.where.values())

    def example_ports(
        self, first_port: int | None, protection: str
    ) -> dict[int, list[int]]:
        """Returns ports for each host that nobody has looked at, from a wanted one up.

        With TLS, no two tasks of the cluster have the same port.
        """
        shared = itertools.count(_EXAMPLE_INNER_PORT)
        first = first_port or _EXAMPLE_PORT
        return {
            host: [
                *itertools.islice(
                    shared if protection == mode.TLS else itertools.count(first),
                    self.num_tasks[host],
                )
            ]
            for host in self.used
        }

    def example_ends(self, first_port: int | None) -> dict[int, TunnelEnd]:
        """Returns the ends of the tunnels between hosts that nobody has looked at."""
        port = first_port or _EXAMPLE_PORT
        return {host: TunnelEnd(self.addresses[host], port) for host in self.used}

    def cluster(self, ports: Mapping[int, Sequence[int]], protection: str) -> Cluster:
        """Returns the cluster, given enough ports for the tasks of each host.

        With TLS, every task is at the same address on every host.
        """
        free = {host: iter(each) for host, each in ports.items()}
        found: dict[str, list[str]] = {}
        for task, host in sorted(self.where.items()):
            name = LOOPBACK if protection == mode.TLS else self.addresses[host]
            address = f"{name}:{next(free[host])}"
            found.setdefault(task.job, []).append(address)
        return Cluster.from_dict(found)


def assign(tasks: Sequence[Task], links: Sequence[float]) -> dict[Task, int]:
    """Returns the index of the host of each task.

    Each ps sends and receives what all workers do, so ps share no host as long as there
    are enough, and get the hosts with the best links. The other tasks go where the
    fewest are, workers first. Hosts that are equal are taken in the order in which they
    were given.

    Args:
        tasks: The tasks of the cluster.
        links: The bandwidth of each host, in any unit; equal if unknown.

    >>> tasks = [Task("chief", 0), *(Task(job, i) for job in ("ps", "worker") for i in (0, 1))]
    >>> {str(task): host for task, host in assign(tasks, [10, 25, 10]).items()}
    {'ps:0': 1, 'ps:1': 0, 'worker:0': 2, 'worker:1': 0, 'chief:0': 1}
    """
    hosts = range(len(links))
    busy: Counter[int] = Counter()
    found = {}
    for task in sorted(tasks, key=lambda each: (_ORDER.index(each.job), each.index)):
        if task.job == "ps":
            host = min(hosts, key=lambda each: (busy[each], -links[each]))
        else:
            host = min(hosts, key=lambda each: busy[each])
        busy[host] += 1
        found[task] = host
    return found


@dataclass(frozen=True)
class Surroundings:
    """The environment of tasks on their hosts.

    Attributes:
        python: The interpreter.
        cwd: The working directory.
        env: The variables that are added to each host's own.
        connect: The command per host that runs a line of shell on it.
        extra: More variables, by host.
    """

    python: str
    cwd: str
    env: Mapping[str, str]
    connect: Sequence[tuple[str, ...]]
    extra: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


def record_of(job: Job, name: str, engine: str) -> Record:
    """Returns the record of a job that is about to start."""
    log_dir = os.path.abspath(job.log_dir)
    return Record(
        name=name,
        engine=engine,
        log_dir=log_dir,
        tf_config=job.plans[0].env[contract.TF_CONFIG],
        tasks={
            plan.name: (
                plan.remote.host if plan.remote else "",
                plan.address,
                os.path.abspath(job.log_path(plan)),
            )
            for plan in job.plans
        },
        grace_period=job.grace_period,
    )
