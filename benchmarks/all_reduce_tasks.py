"""The clusters of all_reduce.py, on hosts that are network namespaces.

Two clusters share the hosts: a chief with TensorFlow servers, for all-reduces inside one
graph, and members that each run a program, for TensorFlow's between-graph collectives.
They take turns; the other one is idle.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import namespace_cluster
from netns import Namespaces

import tf_config

CHIEF = "chief"
MEMBER_PORT = namespace_cluster.PORT + 1
HERE = Path(__file__).resolve().parent


class Clusters:
    """Two clusters on the same hosts.

    Args:
        hosts: Hosts with the names of `host_names`.
        started: Starts their tasks.
        num_workers: The number of hosts that reduce.

    Raises:
        TaskError: If a task does not start.
    """

    def __init__(
        self, hosts: Namespaces, started: namespace_cluster.Tasks, num_workers: int
    ) -> None:
        self._hosts = hosts
        _, *self._workers = host_names(num_workers)
        in_graph = tf_config.Cluster(
            chief=started.addresses([CHIEF]), worker=started.addresses(self._workers)
        )
        started.start_servers(self._workers, in_graph, "worker")
        chief = tf_config.TFConfig(in_graph, tf_config.Task("chief", 0))
        members = tf_config.Cluster(
            worker=started.addresses(self._workers, MEMBER_PORT)
        )
        self._of = {
            CHIEF: [started.start(CHIEF, chief, HERE / "all_reduce_chief.py")],
            "members": [
                started.start(
                    host,
                    tf_config.TFConfig(members, tf_config.Task("worker", index)),
                    HERE / "all_reduce_member.py",
                )
                for index, host in enumerate(self._workers)
            ],
        }
        for task in [*self._of[CHIEF], *self._of["members"]]:
            task.answer()

    def ask(self, of_cluster: str, **request: Any) -> dict[str, Any]:
        """Sends a request to the `chief`, or to all `members`.

        Returns:
            The answer; of several members, the one that took longest.

        Raises:
            TaskError: If there is none.
        """
        asked = self._of[of_cluster]
        for task in asked:
            task.send(**request)
        answers = [task.answer() for task in asked]
        return max(answers, key=lambda answer: answer.get("seconds", 0.0))

    def bytes(self) -> list[tuple[int, int]]:
        """Returns the bytes that each worker's interface has received and sent so far."""
        return [self._hosts.bytes(host) for host in self._workers]


def host_names(num_workers: int) -> list[str]:
    """The names of the chief's host and of those that reduce."""
    return [CHIEF, *(f"worker{index}" for index in range(num_workers))]


@contextlib.contextmanager
def clusters(hosts: Namespaces, num_workers: int) -> Iterator[Clusters]:
    """Starts both clusters, and stops them on exit."""
    with namespace_cluster.tasks(hosts) as started:
        yield Clusters(hosts, started, num_workers)
