"""Roles for processes that an engine has started, given nothing but their hosts."""

from collections import Counter
from collections.abc import Sequence

from tf_config.cluster import Cluster, Task
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError


def assign_roles(
    hosts: Sequence[str], rank: int, num_ps: int, first_port: int
) -> TFConfig:
    """Makes a cluster of processes: ps, then a chief, then workers.

    One process of each host comes before a second of any. So the ps are on the first
    hosts, each on its own as long as there are enough. Without ps, all are workers.

    >>> config = assign_roles(["a", "a", "b", "b"], 2, num_ps=2, first_port=2222)
    >>> config.cluster.as_dict(), str(config.task)
    ({'chief': ['a:2223'], 'ps': ['a:2222', 'b:2222'], 'worker': ['b:2223']}, 'ps:1')

    Args:
        hosts: The host of each process, in the order of their ranks.
        rank: This process's.
        num_ps: How many are ps.
        first_port: The port of the first process on each host; the next has the next.

    Raises:
        ClusterError: If there are too few processes, or the ports are out of range.
    """
    if num_ps and len(hosts) < num_ps + 2:
        raise ClusterError(
            f"{len(hosts)} tasks are too few for {num_ps} ps, a chief and a worker: start "
            f"at least {num_ps + 2}, or have fewer ps"
        )
    seen: Counter[str] = Counter()
    places = []
    for each, host in enumerate(hosts):
        places.append((seen[host], each, f"{host}:{first_port + seen[host]}"))
        seen[host] += 1
    jobs: dict[str, list[str]] = {}
    task = None
    for position, (_, each, address) in enumerate(sorted(places)):
        job = "worker"
        if position <= num_ps and num_ps:
            job = "ps" if position < num_ps else "chief"
        of_job = jobs.setdefault(job, [])
        if each == rank:
            task = Task(job, len(of_job))
        of_job.append(address)
    if task is None:
        raise ClusterError(f"rank {rank} is not one of {len(hosts)} tasks")
    return TFConfig(Cluster.from_dict(jobs), task)
