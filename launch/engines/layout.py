"""Where each task of a job goes, and the job that follows from it."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launch.engines.assign import assign
from launch.engines.hosts import Host
from launch.engines.record import Record
from launch.job import Job
from launch.loopback import make_job
from launch.plan import Program, Remote
from launch.secure import mode
from launch.secure.tunnel import LOOPBACK, End, Tunnel, tunnels
from tf_config import JOBS, Cluster, Task, contract

_EXAMPLE_PORT, _EXAMPLE_INNER_PORT = 2222, 10_000


@dataclass(frozen=True)
class Layout:
    """The tasks of a cluster on hosts.

    Attributes:
        hosts: The hosts.
        addresses: Where the hosts reach each other.
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
        tasks = [Task(job, i) for job in JOBS for i in range(counts.get(job, 0))]
        links = [host.link for host in hosts]
        return cls(hosts, addresses, assign(tasks, links))

    @property
    def used(self) -> list[int]:
        """The hosts that have a task."""
        return sorted(set(self.where.values()))

    @property
    def num_tasks(self) -> Mapping[int, int]:
        """How many tasks each host has."""
        return Counter(self.where.values())

    def example_ports(
        self, first_port: int | None, protection: str
    ) -> dict[int, list[int]]:
        """Returns ports for each host that nobody has looked at.

        Args:
            first_port: The port that the user wants; None for any.
            protection: With TLS, no two tasks of the cluster have the same port.
        """
        if protection == mode.TLS:
            left = itertools.count(_EXAMPLE_INNER_PORT)
            return {
                host: list(itertools.islice(left, self.num_tasks[host]))
                for host in self.used
            }
        first = first_port or _EXAMPLE_PORT
        return {
            host: list(range(first, first + self.num_tasks[host])) for host in self.used
        }

    def example_ends(self, first_port: int | None) -> dict[int, End]:
        """Returns the ends of the tunnels between hosts that nobody has looked at."""
        port = first_port or _EXAMPLE_PORT
        return {host: End(self.addresses[host], port) for host in self.used}

    def cluster(self, ports: Mapping[int, Sequence[int]], protection: str) -> Cluster:
        """Returns the cluster.

        Args:
            ports: Enough ports for the tasks of each host.
            protection: With TLS, every task is at the same address on every host.

        Raises:
            ClusterError: If the addresses are malformed.
        """
        free = {host: iter(each) for host, each in ports.items()}
        found: dict[str, list[str]] = {}
        for task, host in sorted(self.where.items()):
            name = LOOPBACK if protection == mode.TLS else self.addresses[host]
            address = f"{name}:{next(free[host])}"
            found.setdefault(task.job, []).append(address)
        return Cluster.from_dict(found)


@dataclass(frozen=True)
class Surroundings:
    """What tasks find on their hosts.

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

    def with_extra(self, extra: Mapping[int, Mapping[str, str]]) -> "Surroundings":
        """Returns the same with more variables."""
        return replace(self, extra=extra)


def job_on_hosts(
    layout: Layout,
    ports: Mapping[int, Sequence[int]],
    program: Program,
    kind: str,
    there: Surroundings,
    *,
    protection: str = mode.OFF,
    ends: Mapping[int, End] | None = None,
    checkpoint_dir: str | None = None,
    **options: Any,
) -> Job:
    """Plans a job on hosts.

    Args:
        layout: Where each task goes.
        ports: The ports of each host.
        program: The script and its flags.
        kind: One of `launch.plan.PROGRAM_KINDS`.
        there: What the tasks find on their hosts.
        protection: What keeps strangers out: one of `launch.secure.mode.MODES` but
            `auto`.
        ends: With TLS, each host's end of the tunnels.
        checkpoint_dir: Where the script keeps its checkpoints, on its host.
        **options: For `launch.loopback.make_job`.

    Raises:
        PlanError: If the program does not fit the cluster.
        ClusterError: If the addresses are malformed.
    """
    if checkpoint_dir is not None:
        checkpoint_dir = os.path.join(there.cwd, checkpoint_dir)
    cluster = layout.cluster(ports, protection)
    job = make_job(
        cluster,
        program,
        kind,
        environ=there.env,
        checkpoint_dir=checkpoint_dir,
        **options,
    )
    plans = []
    remotes = {
        host: Remote(layout.hosts[host].name, there.connect[host], there.cwd)
        for host in layout.used
    }
    for plan in job.plans:
        host = layout.where[plan.task]
        env = {**there.env, **there.extra.get(host, {}), **plan.env}
        argv = (there.python, *plan.argv[1:])
        plans.append(replace(plan, argv=argv, env=env, remote=remotes[host]))
    between: tuple[Tunnel, ...] = ()
    if protection == mode.TLS:
        between = tunnels(
            cluster, layout.where, ends or {}, remotes, there.python, there.env
        )
    return replace(
        job,
        plans=tuple(plans),
        protection=protection,
        tunnels=between,
        hosts=tuple(layout.addresses[each] for each in layout.used),
    )


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
