"""Picks free ports that no other program is likely to take."""

import contextlib
import itertools
import random
import socket
from pathlib import Path

from tf_config.errors import Mistake

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 10_000, 65_535


class PortError(Mistake):
    """This machine has too few free ports for the cluster."""


def outside(low: int, high: int) -> list[int]:
    """Returns the ports that the kernel never assigns to outgoing connections.

    Clients get ports from `low` to `high`, and one could take a port between our choice
    and the start of the server. If the machine assigns almost all ports that way, all
    ports are returned.

    >>> ports = outside(32768, 60999)
    >>> min(ports), max(ports), 40000 in ports
    (10000, 65535, False)
    """
    every = range(_LOWEST, _HIGHEST + 1)
    private = [port for port in every if not low <= port <= high]
    return private if len(private) >= 1_000 else list(every)


def at_random(count: int) -> list[int]:
    """Returns ports for another host, whose own assignments are most likely as usual."""
    return random.SystemRandom().sample(outside(32768, 60999), count)


def pick(count: int) -> list[int]:
    """Picks free ports at random, so that two launchers rarely collide.

    Raises:
        PortError: If fewer than `count` are free.
    """
    low, high = map(int, _EPHEMERAL.read_text().split())
    candidates = outside(low, high)
    # Not `random.shuffle`: all runs of a program that sets a seed would collide.
    random.SystemRandom().shuffle(candidates)
    ports = [*itertools.islice(filter(is_free, candidates), count)]
    if len(ports) < count:
        raise PortError(
            f"the cluster needs {count} free ports, but this machine has "
            f"{len(ports)}: start fewer tasks"
        )
    return ports


def is_free(port: int) -> bool:
    """Returns True if a server could listen on the port on every interface."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("", port))
        return True
    return False
