"""Protection of a job's ports on this machine, and the notice for the user.

Anyone who can reach the port of a TensorFlow server can run code there.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from launch.network import loopback_only, private_network
from launch.network.loopback_only import LoopbackOnly
from tf_config import split_address

AUTO, LOOPBACK, PRIVATE, OPEN = MODES = ("auto", "loopback", "private", "open")


class ProtectionError(RuntimeError):
    """The requested protection is not available on this system."""


@dataclass(frozen=True)
class Protection:
    """The protection of a job against unauthorized hosts.

    Attributes:
        notice: The notice for the user.
        is_open: Whether the ports are open to other machines.
        confined: The answerer of the tasks' calls of bind, if any.
    """

    notice: str
    is_open: bool = False
    confined: LoopbackOnly | None = None


def protect(mode: str, ports: Collection[int]) -> Protection:
    """Protects the ports of the processes that this process will start.

    Args:
        mode: `loopback`: only this machine can reach the ports; `private`: the job gets
            its own network, which cannot be reached and reaches nothing; `open`: every
            machine that can reach this one; `auto`: `loopback` if the system allows
            it, otherwise `open`.
        ports: The ports of the job.

    Raises:
        ProtectionError: If the system does not allow `loopback` or `private`.
    """
    if mode == PRIVATE:
        try:
            private_network.enter()
        except OSError as error:
            raise ProtectionError(
                f"this system cannot give the job its own network ({error.strerror}): "
                "allow unprivileged user namespaces, or try --network=loopback"
            ) from None
        return Protection(
            "the job has its own network (--network=private): no other process can reach "
            "its ports, and it cannot reach other machines"
        )
    problem = "" if mode == OPEN else loopback_only.why_not()
    if mode == LOOPBACK and problem:
        raise ProtectionError(
            f"this system cannot close the ports to other machines ({problem}): try "
            "--network=private, or --network=open if you trust the network"
        )
    if mode == OPEN or problem:
        return Protection(_warning(mode, problem), is_open=True)
    return Protection(
        "the ports are closed to other machines (--network=loopback)",
        confined=LoopbackOnly(ports),
    )


def _warning(mode: str, problem: str) -> str:
    why = f"they cannot be closed, {problem}" if problem else f"--network={mode}"
    reach = " or ".join(addresses())
    if not reach:
        return f"the ports are open, and this machine has no network ({why})"
    return (
        f"WARNING: the ports are open ({why}): anyone who can reach {reach} can run code as "
        f"{_user()}, without a password. --network=private closes them"
    )


def exposure(port: int) -> str:
    """Returns a warning about a port that is open to other machines, or ''."""
    reach = " or ".join(addresses())
    if not reach:
        return ""
    return (
        f"WARNING: anyone who can reach port {port} of {reach} can run code "
        f"as {_user()}, without a password: open it only to the machines of the cluster"
    )


def addresses() -> list[str]:
    """Returns the addresses at which other machines may reach this one."""
    found = [
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [
        address
        for address in dict.fromkeys(found)
        if not (parsed := ipaddress.ip_address(address)).is_loopback
        and not parsed.is_link_local
    ]


def is_here(address: str) -> bool:
    """Returns True if `host:port` is an address of this machine."""
    try:
        found = socket.getaddrinfo(split_address(address)[0], None)
    except (OSError, UnicodeError):
        return True  # An unknown host gives nothing to compare.
    return any(has_address(family, str(each[0])) for family, *_, each in found)


def has_address(family: int, ip: str) -> bool:
    """Returns True if an IP address belongs to this machine."""
    # The kernel binds only its own addresses; a list of interfaces would miss some, such as
    # all of 127.0.0.0/8.
    with (
        contextlib.suppress(OSError),
        socket.socket(family, socket.SOCK_DGRAM) as tried,
    ):
        tried.bind((ip.partition("%")[0], 0))
        return True
    return False


def _user() -> str:
    try:
        return psutil.Process().username()
    except (psutil.Error, KeyError):  # A container may run as a user without a name.
        return f"user {os.getuid()}"
