"""Who reaches the ports of a job on this machine: a choice, and what to say of it.

Whoever reaches the port of a TensorFlow server can run code there, unasked.
"""

import ipaddress
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from launch.network import loopback_only, private_network
from launch.network.loopback_only import LoopbackOnly
from launch.plan import TaskPlan
from tf_config import split_address

AUTO, LOOPBACK, PRIVATE, OPEN = MODES = ("auto", "loopback", "private", "open")


class NetworkError(RuntimeError):
    """A protection that was asked for and is not to be had on this system."""


@dataclass(frozen=True)
class Protection:
    """What keeps strangers out of a job.

    Attributes:
        notice: What to tell the user.
        is_open: Whether nothing does.
        confined: What has to be answered meanwhile, if anything.
    """

    notice: str
    is_open: bool = False
    confined: LoopbackOnly | None = None


def protect(mode: str, ports: Collection[int]) -> Protection:
    """Protects the ports of what this process will start.

    Args:
        mode: `loopback`: this machine alone reaches the ports; `private`: a network
            of its own, which no other process reaches, and which reaches none;
            `open`: whoever reaches this machine; `auto`: `loopback` if the system
            allows it, and otherwise `open`.
        ports: Those of the job.

    Raises:
        NetworkError: If the system does not allow `loopback` or `private`.
    """
    if mode == PRIVATE:
        return _private()
    problem = "" if mode == OPEN else loopback_only.why_not()
    if mode == LOOPBACK and problem:
        raise NetworkError(
            f"the ports cannot be closed to other machines here ({problem}): try "
            "--network=private, or --network=open in a network of your own"
        )
    if mode == OPEN or problem:
        return Protection(_warning(mode, problem), is_open=True)
    return Protection(
        "the ports are closed to other machines (--network=loopback)",
        confined=LoopbackOnly(ports),
    )


def _private() -> Protection:
    try:
        private_network.enter()
    except OSError as error:
        raise NetworkError(
            f"a network of its own cannot be made here ({error.strerror}): have "
            "unprivileged user namespaces allowed, or try --network=loopback"
        ) from None
    return Protection(
        "the job has a network of its own (--network=private): nobody else reaches its "
        "ports, and it reaches no other machine"
    )


def _warning(mode: str, problem: str) -> str:
    why = f"they cannot be closed, {problem}" if problem else f"--network={mode}"
    reach = " or ".join(addresses())
    if not reach:
        return f"the ports are open, and this machine has no network ({why})"
    return (
        f"WARNING: the ports are open ({why}): whoever reaches {reach} can run code as "
        f"{_user()}, without a password. --network=private closes them"
    )


def exposure(task_plan: TaskPlan) -> str:
    """Warns of the port that a task will open; '' if there is nothing to warn of."""
    reach = " or ".join(addresses())
    if not reach or task_plan.task.job == "evaluator":  # It opens none.
        return ""
    return (
        f"WARNING: whoever reaches port {task_plan.port} of {reach} can run code as "
        f"{_user()}, without a password: let the machines of the cluster in, and no "
        "others"
    )


def addresses() -> list[str]:
    """The addresses by which other machines may reach this one."""
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
    """Whether `host:port` is an address of this machine, if its host is known at all."""
    try:
        found = socket.getaddrinfo(split_address(address)[0], None)
    except (OSError, UnicodeError):
        return True
    return any(has_address(family, str(each[0])) for family, *_, each in found)


def has_address(family: int, ip: str) -> bool:
    """Whether this machine has an IP address."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind((ip.partition("%")[0], 0))
    except OSError:
        return False
    return True


def _user() -> str:
    try:
        return psutil.Process().username()
    except (psutil.Error, KeyError):
        return f"user {os.getuid()}"
