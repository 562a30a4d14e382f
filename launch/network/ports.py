"""Free ports that nobody else is about to take."""

import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535


class PortError(ValueError):
    """There are not as many free ports as the cluster has tasks."""


def outside(low: int, high: int) -> list[int]:
    """The ports that the kernel never hands out by itself.

    The kernel gives `low` to `high` to outgoing connections, which could take a
    port between our choice and the server's start. A machine that is set to give
    out almost all ports leaves no choice but to share.

    >>> ports = outside(32768, 60999)
    >>> min(ports), max(ports), 40000 in ports
    (10000, 65535, False)
    """
    every = range(_LOWEST, _HIGHEST + 1)
    private = [port for port in every if not low <= port <= high]
    return private if len(private) >= 1_000 else list(every)


def pick(count: int) -> list[int]:
    """Picks free ports at random, so that two launchers seldom meet.

    Raises:
        PortError: If fewer than `count` are free.
    """
    low, high = map(int, _EPHEMERAL.read_text().split())
    candidates = outside(low, high)
    # Not by the seed of a program, which would have every run of it meet the others.
    random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    for port in candidates:
        if len(ports) == count:
            break
        if is_free(port):
            ports.append(port)
    if len(ports) < count:
        raise PortError(
            f"the cluster needs {count} free ports, and this machine has "
            f"{len(ports)}: start fewer tasks"
        )
    return ports


def is_free(port: int) -> bool:
    """Whether a server that listens on every interface could take the port."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
