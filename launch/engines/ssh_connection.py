"""The command line of ssh, and the addresses that its configuration gives to hosts."""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launch.engines.engine import EngineError
from launch.engines.hosts import Host


def connect(ssh: str, host: str, timeout: float) -> tuple[str, ...]:
    """Returns the command that runs a line of shell, its last argument, on a host.

    Args:
        ssh: The user's ssh with its options, as on a shell's command line.
        host: The host, as ssh knows it.
        timeout: Seconds to wait for a connection.
    """
    # Of each option ssh takes the first: the user's here, then these, then those of the
    # user's configuration. A connection that others share would not end with its task,
    # and a port that the configuration forwards can be forwarded once only.
    options = ["BatchMode=yes", "ControlMaster=no", "ControlPath=none"]
    options += ["ClearAllForwardings=yes", f"ConnectTimeout={max(1, round(timeout))}"]
    options += ["ServerAliveInterval=10", "ServerAliveCountMax=4"]
    return (*shlex.split(ssh), "-T", *(f"-o{each}" for each in options), "--", host)


def address(ssh: str, host: Host) -> str:
    """Returns where the other hosts reach a host: its name, after ssh's configuration."""
    if host.address:
        return host.address
    name = host.name.rpartition("@")[2]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [*shlex.split(ssh), "-G", "--", host.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and (
            found := re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        ):
            name = found[1]
    return name


def addresses(ssh: str, hosts: Sequence[Host]) -> list[str]:
    """Returns where the other hosts reach each host.

    Raises:
        EngineError: If other hosts cannot reach one of them there.
    """
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(lambda host: address(ssh, host), hosts))
    for host, name in zip(hosts, found, strict=True):
        if len(hosts) > 1 and re.fullmatch(r"localhost|127\.[0-9.]+|\[?::1\]?", name):
            raise EngineError(
                f"{host.name} has the address {name}, where no other host reaches it: "
                "give its name in the network, or address= in a --hostfile"
            )
        if (first := hosts[found.index(name)]) is not host:
            raise EngineError(
                f"{first.name} and {host.name} have the same address, {name}: name each "
                "host once; it can run several tasks"
            )
    return [f"[{each}]" if ":" in each.strip("[]") else each for each in found]
