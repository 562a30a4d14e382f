"""Tasks on hosts of their own, whose links have a certain rate.

A host is a network namespace on this machine, so all share its cores. It takes root and
iproute2.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from launch.job.job import Job
from launch.job.plan import cluster_of, task_name, tasks_of
from launch.network import reach
from launch.network.namespaces import Namespaces, network
from tf_config import Cluster, Task

_PORT = 2222
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}


class RateError(ValueError):
    """A rate that `tc` would not understand, or would understand differently."""


def bytes_per_second(rate: str) -> float:
    """Returns a rate of `tc` in bytes per second.

    >>> bytes_per_second("1gbit")
    125000000.0
    """
    found = _RATE.fullmatch(rate)
    if found is None or not float(found[1]):
        raise RateError(
            "a rate is a positive number and kbit, mbit or gbit, such as 200mbit; "
            f"received {rate!r}"
        )
    return float(found[1]) * _BITS[found[2]] / 8


def burst_of(rate: float) -> int:
    """Returns how many bytes pass at once after a pause.

    Few, since they do not take the time that the rate says; but a packet of the kernel's
    own may have 64 KiB, and its timers may be late by a millisecond or two.

    Args:
        rate: In bytes per second.
    """
    return max(70_000, round(0.002 * rate))


class ShapedHosts:
    """Hosts for the tasks of jobs."""

    def __init__(self, hosts: Namespaces) -> None:
        self._hosts = hosts

    def cluster(self, counts: Mapping[str, int]) -> Cluster:
        """Returns a cluster with one task per host."""
        return cluster_of(
            counts, lambda task: f"{self._hosts.address(_host(task))}:{_PORT}"
        )

    def place(self, job: Job) -> Job:
        """Returns the job with each task on its host."""
        plans = tuple(
            replace(
                plan,
                argv=tuple(self._hosts.command(_host(plan.task), list(plan.argv))),
            )
            for plan in job.plans
        )
        # The hosts have no connection to anything else.
        return replace(job, plans=plans, network=reach.OPEN)

    def bytes_of(self, job: Job) -> Mapping[str, float]:
        """Reads the bytes that each task's host has sent and received."""
        found = {}
        for plan in job.plans:
            received, sent = self._hosts.bytes(_host(plan.task))
            found[f"received {plan.name}"] = float(received)
            found[f"sent {plan.name}"] = float(sent)
        return found


def _host(task: Task) -> str:
    return task_name(task).replace(":", "")


@contextlib.contextmanager
def shaped_hosts(rate: str, num_ps: int, most_workers: int) -> Iterator[ShapedHosts]:
    """Creates the hosts of a chief, an evaluator, ps and workers, and removes them.

    Raises:
        NetworkError: If this process may not create namespaces, or has no iproute2.
    """
    counts = {"chief": 1, "evaluator": 1, "ps": num_ps, "worker": most_workers}
    with network([_host(task) for task in tasks_of(counts)]) as hosts:
        hosts.shape(rate, f"{burst_of(bytes_per_second(rate))}b")
        yield ShapedHosts(hosts)
