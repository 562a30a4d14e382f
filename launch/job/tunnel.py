"""The tunnels of a job: one stunnel per host, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from launch.job.plan import Remote
from launch.secure import stunnel
from launch.secure.stunnel import TunnelRoute
from tf_config import Cluster, Task, split_address

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class TunnelEnd:
    """The files and ports of one host for its end of the tunnels.

    Attributes:
        address: The address for the other hosts, without a port.
        port: The port of its stunnel.
        program: The path of stunnel there.
        has_ipv6: Whether it has IPv6.
    """

    address: str
    port: int
    program: str = "stunnel"
    has_ipv6: bool = False


@dataclass(frozen=True)
class Tunnel:
    """The stunnel of one host.

    Attributes:
        remote: The host.
        address: The stunnel's address for the other hosts, with its port.
        names: The names of its certificate.
        python: The interpreter that makes its key, on the host.
        argv: Its command; `@config@` is the number of the file with the `config`.
        config: Its configuration, in which `@key@`, `@certificate@` and `@authority@`
            are the numbers of these files.
        env: Additions to the host's environment.
    """

    remote: Remote
    address: str
    names: tuple[str, ...]
    python: str
    argv: tuple[str, ...]
    config: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of it in messages."""
        return f"stunnel on {self.remote.host}"

    @property
    def port(self) -> int:
        """Its port."""
        return split_address(self.address)[1]


def tunnels(
    cluster: Cluster,
    where: Mapping[Task, int],
    ends: Mapping[int, TunnelEnd],
    remotes: Mapping[int, Remote],
    python: str,
    env: Mapping[str, str],
) -> tuple[Tunnel, ...]:
    """Plans the tunnels of a job; none if one host has all tasks."""
    hosts = sorted({where[task] for task in cluster.tasks()})
    if len(hosts) == 1:
        return ()
    routes = [
        TunnelRoute(
            task, split_address(cluster.address(task))[1], _address(ends[where[task]])
        )
        for task in cluster.tasks()
    ]
    found = []
    for host in hosts:
        end = ends[host]
        here = [each for each in routes if where[each.task] == host]
        elsewhere = [each for each in routes if where[each.task] != host]
        config = stunnel.configuration(end.port, here, elsewhere, has_ipv6=end.has_ipv6)
        names = tuple(stunnel.name(route.task) for route in here)
        # A file in memory, as are the key and the certificate.
        argv = (end.program, "-fd", "@config@")
        found.append(
            Tunnel(remotes[host], _address(end), names, python, argv, config, env)
        )
    return tuple(found)


def _address(end: TunnelEnd) -> str:
    return f"{end.address}:{end.port}"
