"""The hosts of a job, as a user lists them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tf_config.errors import Mistake

_NAME = r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]*"
_SETTINGS = ("address", "link")


class HostError(Mistake):
    """A list of hosts that cannot be read."""


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: The engine's name for it, for ssh `host`, `user@host`, or an alias of the
            user's configuration.
        address: The address for the other hosts; '' if the name is the address.
        link: The bandwidth of its network link, in Gbit/s; 0 if unknown.
    """

    name: str
    address: str = ""
    link: float = 0.0


def parse_list(text: str) -> tuple[Host, ...]:
    """Parses `h0,h1,h2`."""
    return _checked([Host(name.strip()) for name in text.split(",")], "--hosts")


def parse_file(text: str, name: str) -> tuple[Host, ...]:
    r"""Parses a file with one host per line.

    >>> parse_file("h0 link=25  # in rack 1\n\nh1 address=10.0.0.2\n", "hosts.txt")
    (Host(name='h0', address='', link=25.0), Host(name='h1', address='10.0.0.2', link=0.0))
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_parse_line(words, f"{name}, line {number}"))
    if not hosts:
        raise HostError(f"{name} names no host: write one per line, such as h0 link=25")
    return _checked(hosts, name)


def _parse_line(words: Sequence[str], where: str) -> Host:
    name, *settings = words
    found = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in _SETTINGS or not value or key in found:
            _refuse(where, setting, "after the host come address=HOST and link=GBIT_S")
        found[key] = value
    try:
        link = float(found.get("link", 0))
    except ValueError:
        link = math.nan
    if "link" in found and not 0 < link < math.inf:
        _refuse(where, f"link={found['link']}", "it is a number of Gbit/s above 0")
    return Host(name, found.get("address", ""), link)


def _checked(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    for host in hosts:
        for word in filter(None, [host.name or " ", host.address]):
            # A name that begins with a hyphen would be an option of ssh.
            if not re.fullmatch(_NAME, word):
                _refuse(where, word.strip(), "write a host such as h0 or user@h0")
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HostError(
            f"{where} names the host {twice!r} twice: name each once; it can run several "
            "tasks"
        )
    return tuple(hosts)


def _refuse(where: str, received: str, allowed: str) -> NoReturn:
    raise HostError(f"{where} has {received!r}: {allowed}")
