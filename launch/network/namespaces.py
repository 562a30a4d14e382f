"""Hosts on this machine: one network namespace each, joined by a bridge.

They are unreachable from outside: neither the bridge nor this machine has an address in
their network. Every interface counts its bytes, and can be shaped.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_PREFIX = "tfd"
_SUBNET = "10.87.0"
_MAX_HOSTS = 200
# A packet of the kernel's own may be 64 KiB, and a bucket must hold one at least.
_BURST = "256kb"
_QUEUE = "100ms"


class NetworkError(RuntimeError):
    """The network cannot be created on this machine."""


class Namespaces:
    """Namespaces that exist within `network`.

    Args:
        names: The names of the hosts.
        tag: A letter that tells it from other networks of this process.
    """

    def __init__(self, names: Sequence[str], tag: str = "") -> None:
        if len(names) > _MAX_HOSTS:
            raise ValueError(f"at most {_MAX_HOSTS} hosts; received {len(names)}")
        self._tag = f"{_PREFIX}{os.getpid()}{tag}"
        self._index = {name: index for index, name in enumerate(names)}

    def address(self, name: str) -> str:
        """The IPv4 address of a host."""
        return f"{_SUBNET}.{self._index[name] + 1}"

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """Returns the command that runs another on a host, and dies with this process."""
        inside = ["ip", "netns", "exec", self.namespace(name)]
        return [*inside, "setpriv", "--pdeathsig", "KILL", *command]

    def bytes(self, name: str) -> tuple[int, int]:
        """Returns the bytes that a host has received and sent since its creation."""
        counters = Path("/sys/class/net", self.outside(name), "statistics")
        # Bytes that this end of the cable has sent, the host's end has received.
        received, sent = (
            int((counters / f"{each}_bytes").read_text()) for each in ("tx", "rx")
        )
        return received, sent

    def shape(self, rate: str | None, burst: str = _BURST) -> None:
        """Limits the traffic of each host to a rate of `tc` such as `1gbit`.

        `burst` is what may pass at once after a pause; a rate of None is no limit.
        """
        for name in self._index:
            inside = ["ip", "netns", "exec", self.namespace(name)]
            # tbf shapes only what a device sends, so each direction needs one at its
            # own end.
            for prefix, device in ((inside, "eth0"), ([], self.outside(name))):
                if rate is None:
                    _try(*prefix, "tc", "qdisc", "del", "dev", device, "root")
                    continue
                bucket = ["tbf", "rate", rate, "burst", burst, "latency", _QUEUE]
                _run(*prefix, "tc", "qdisc", "replace", "dev", device, "root", *bucket)

    def create(self) -> None:
        """Creates the bridge and the hosts."""
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "link", "set", self._bridge, "up")
        for name in self._index:
            self._add(name)

    def renew(self, name: str) -> None:
        """Replaces a host by one that has no trace of its connections."""
        self._delete(name)
        self._add(name)

    def remove(self) -> None:
        """Removes the bridge and the hosts. Their processes must have exited."""
        for name in self._index:
            self._delete(name)
        _try("ip", "link", "del", self._bridge)

    def _add(self, name: str) -> None:
        namespace, outside = self.namespace(name), self.outside(name)
        _run("ip", "netns", "add", namespace)
        _run(
            *("ip", "link", "add", outside, "type", "veth"),
            *("peer", "name", "eth0", "netns", namespace),
        )
        _run("ip", "link", "set", outside, "master", self._bridge, "up")
        inside = ("ip", "-n", namespace)
        _run(*inside, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")

    def _delete(self, name: str) -> None:
        _try("ip", "netns", "del", self.namespace(name))
        _try("ip", "link", "del", self.outside(name))

    @property
    def _bridge(self) -> str:
        return f"{self._tag}br"

    def namespace(self, name: str) -> str:
        """The network namespace of a host, in /run/netns."""
        return f"{self._tag}-{name}"

    def outside(self, name: str) -> str:
        """The end of a host's cable that is on this machine: an interface."""
        # The kernel allows 15 characters, so no host's name fits in.
        return f"{self._tag}v{self._index[name]}"


@contextlib.contextmanager
def network(names: Sequence[str], tag: str = "") -> Iterator[Namespaces]:
    """Creates hosts, and removes them on exit, errors and signals included.

    Raises:
        NetworkError: If this process lacks the right, or a tool is missing.
    """
    _remove_strays()
    made = Namespaces(names, tag)
    with _signals_raise():
        try:
            made.create()
            yield made
        finally:
            made.remove()


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Makes SIGTERM unwind the stack, as SIGINT does."""

    def end(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _remove_strays() -> None:
    """Removes the leftovers of a killed process."""
    listed = subprocess.run(
        ["ip", "-o", "link"], check=False, capture_output=True, text=True
    ).stdout
    namespaces = Path("/run/netns")
    names = [path.name for path in namespaces.iterdir()] if namespaces.exists() else []
    for name in names:
        if _is_stray(name):
            _try("ip", "netns", "del", name)
    for name in re.findall(rf"^\d+: ({_PREFIX}\d+\w+)[@:]", listed, re.MULTILINE):
        if _is_stray(name):
            _try("ip", "link", "del", name)


def _is_stray(name: str) -> bool:
    found = re.match(rf"{_PREFIX}(\d+)[a-z]?(-|v|br)", name)
    return found is not None and not Path("/proc", found[1]).exists()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NetworkError(
            f"there is no `{error.filename}`: apt-get install iproute2"
        ) from None
    except subprocess.CalledProcessError as error:
        raise NetworkError(
            f"`{' '.join(command)}` failed: {error.stderr.strip()}. Network namespaces "
            "are for root, with the capabilities NET_ADMIN and SYS_ADMIN"
        ) from None


def _try(*command: str) -> None:
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
