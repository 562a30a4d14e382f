"""A real Ray cluster on this machine: nodes with addresses of their own on the loopback."""

import contextlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from ..launch_programs.launcher import wait_for

CPUS = 4  # of each node, for Ray: the machine may have fewer.
# A dead node is noticed after 2 s, and a slow one after 10 s as usual.
HURRY = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
STORE = 80 * 2**20  # bytes, close to the least that Ray allows

needs_ray = [
    pytest.mark.engine,
    pytest.mark.namespaces,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="there is no Ray: pip install ray",
    ),
]

_directories = []


class RayNodes:
    """A running cluster, to which this process is connected.

    Attributes:
        address: The address of its head.
    """

    def __init__(self, cluster):
        self._cluster = cluster
        self._nodes = {}
        self.address = ""

    def add(self, ip):
        """Adds a node, and waits until Ray can use it."""
        head = {} if self._nodes else {"_system_config": HURRY}
        self._nodes[ip] = self._cluster.add_node(
            **head,
            num_cpus=CPUS,
            num_gpus=0,
            node_ip_address=ip,
            include_dashboard=False,
            object_store_memory=STORE,
        )
        self.address = self._cluster.address

    @property
    def names(self):
        """The addresses of its nodes."""
        return list(self._nodes)

    def kill(self, ip):
        """Kills a node: all processes of Ray there."""
        self._cluster.remove_node(self._nodes.pop(ip), allow_graceful=False)

    def of(self, pid):
        """The address of the node that a task's process runs on."""
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        raylets = {
            b"RAY_RAYLET_PID=%d" % process.process.pid: ip
            for ip, node in self._nodes.items()
            for process in node.all_processes["raylet"]
        }
        return next(raylets[each] for each in environ if each in raylets)

    def free(self):
        """How many CPUs no job has reserved."""
        import ray

        return ray.available_resources().get("CPU", 0)

    def groups(self):
        """How many placement groups there are."""
        from ray.util import placement_group_table

        states = [each["state"] for each in placement_group_table().values()]
        return len(states) - states.count("REMOVED")

    def is_empty(self):
        """Whether Ray has everything back."""
        is_free = self.free() == CPUS * len(self._nodes)
        return is_free and not self.groups() and not actors()


def actors():
    """The processes of actors that run tasks."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "".join(process.cmdline()[:1]).startswith(("ray::Shell", "ray::Rank")):
                found.append(process)
    return found


@contextlib.contextmanager
def ray_nodes(ips):
    """Starts a cluster, and ends it with whatever it has started."""
    import ray
    from ray.cluster_utils import Cluster

    # The paths of its sockets would be too long under pytest's own directory.
    directory = tempfile.mkdtemp(prefix="ray")
    before = {process.pid for process in psutil.process_iter()}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK"):
            patch.delenv(name, raising=False)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", directory)
        cluster = Cluster(initialize_head=False)
        nodes = RayNodes(cluster)
        try:
            for ip in ips:
                nodes.add(ip)
            ray.init(nodes.address, log_to_driver=False, logging_level=40)
            yield nodes
        finally:
            ray.shutdown()
            cluster.shutdown()
            end_of_ray(before, directory)


def end_of_ray(before, directory):
    """Waits for the end of Ray's processes, and removes its files."""
    wait_for(lambda: not _of_ray(before), "end of Ray", lambda: _of_ray(before))
    # A cluster that starts later in this process makes the directory of the one before it
    # again, without files.
    _directories.append(directory)
    for each in _directories:
        shutil.rmtree(each, ignore_errors=True)
        assert not os.path.exists(each)


def _of_ray(before):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline()[:4])
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            is_ours = process.pid not in before and not is_zombie
            if is_ours and ("ray::" in line or "/ray/" in line):
                found.append((process.pid, line))
    return found
