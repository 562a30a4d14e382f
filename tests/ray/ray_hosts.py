"""A real Ray whose nodes are hosts of their own: one network namespace each."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from launch.network.namespaces import network as network_of

from ..launch_programs.launcher import wait_for
from ..support.deadline import DEADLINE
from ..support.namespaces import host_of, needs_root, needs_stunnel
from .ray_nodes import CPUS, STORE, end_of_ray, needs_ray

PORT = 6379

needs_hosts = [
    *needs_ray,
    needs_root,
    needs_stunnel,
]


class RayHosts:
    """Running hosts; the first has Ray's head.

    Attributes:
        names: Their names.
        environ: The environment for programs on the cluster.
    """

    def __init__(self, network, names, directory):
        self.network = network
        self.names = names
        self.environ = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": directory,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._nodes = []

    @property
    def address(self):
        return f"{self.network.address(self.names[0])}:{PORT}"

    def command(self, name, command):
        """Returns the command that runs another on a host."""
        # `ip netns exec` would hide /sys.
        namespace = self.network.namespace(name)
        return ["nsenter", f"--net=/run/netns/{namespace}", *command]

    def start(self):
        for name in self.names:
            first = name == self.names[0]
            part = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            command = [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                *(part if first else [f"--address={self.address}"]),
                f"--node-ip-address={self.network.address(name)}",
                *(f"--num-cpus={CPUS}", "--num-gpus=0"),
                f"--object-store-memory={STORE}",
            ]
            log = Path(self.environ["RAY_TMPDIR"], f"{name}.log")
            with log.open("wb") as output:
                self._nodes.append(
                    subprocess.Popen(
                        self.command(name, command),
                        env={**os.environ, **self.environ},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                )
            # One after the other: they share the directory of their sockets.
            said = log.read_text
            wait_for(lambda said=said: "Ray runtime started" in said(), "node", said)

    def host_of(self, pid):
        """The name of the host whose network a process is in."""
        return host_of(self.network, self.names, pid)

    def stop(self):
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            try:
                node.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


@contextlib.contextmanager
def ray_hosts(names):
    """Creates hosts, and removes them and whatever still runs on them."""
    directory = tempfile.mkdtemp(prefix="ray")
    before = {process.pid for process in psutil.process_iter()}
    with network_of(names) as network:
        hosts = RayHosts(network, names, directory)
        try:
            hosts.start()
            yield hosts
        finally:
            hosts.stop()
            end_of_ray(before, directory)
