"""The devices that layers are placed on, and the links between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Device:
    """A device, which computes one layer at a time.

    Attributes:
        name: The name.
        speed: How fast it is, relative to the device that the costs were measured on.
        memory: Bytes that it has for weights, slots and activations; None: without limit.

    Raises:
        ValueError: If the speed is not a positive number, or the memory is negative.
    """

    name: str
    speed: float = 1.0
    memory: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(
                f"the speed of device {self.name!r} must be a positive number, where 1 "
                f"is the device that costs were measured on; received {self.speed!r}"
            )
        if self.memory is not None and not self.memory >= 0:
            raise ValueError(
                f"the memory of device {self.name!r} must be at least 0 bytes, or None "
                f"for no limit; received {self.memory!r}"
            )


class Link(NamedTuple):
    """A link from one device to another, which carries one tensor at a time.

    Attributes:
        bandwidth: Bytes per second.
        latency: Seconds from the last byte sent until the tensor is there.
    """

    bandwidth: float = math.inf
    latency: float = 0.0


@dataclass(frozen=True)
class Links:
    """The links between devices: one for each pair of devices in each direction.

    >>> links = Links(1e9, 1e-4, between={("a", "c"): (1e8, 1e-3)})
    >>> links.of("a", "b"), links.of("c", "a")
    (Link(bandwidth=1000000000.0, latency=0.0001), Link(bandwidth=100000000.0, latency=0.001))

    Attributes:
        bandwidth: Bytes per second of a link that `between` does not name.
        latency: Its seconds from the last byte sent until the tensor is there.
        between: `(bandwidth, latency)` of the link from one device to another, by their
            names; of the way back too, unless that is named itself.

    Raises:
        ValueError: If a bandwidth is not positive or a latency negative.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    between: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        links = {"the links": (self.bandwidth, self.latency)} | {
            f"the link from {source!r} to {target!r}": link
            for (source, target), link in self.between.items()
        }
        for what, (bandwidth, latency) in links.items():
            if not (bandwidth > 0 and 0 <= latency < math.inf):
                raise ValueError(
                    f"{what} must have a bandwidth above 0 bytes/s and a latency of at "
                    f"least 0 s; received {bandwidth!r} and {latency!r}"
                )

    def of(self, source: str, target: str) -> Link:
        """Returns the link from one device to another."""
        for pair in ((source, target), (target, source)):
            if pair in self.between:
                return Link(*self.between[pair])
        return Link(self.bandwidth, self.latency)


def checked_links(network: Links | None) -> Links:
    """Returns the links; None is links that cost nothing."""
    if network is None:
        return Links()
    if not isinstance(network, Links):
        raise TypeError(
            "network is tfdist.research.Links(bandwidth, latency), or None; "
            f"received {network!r}"
        )
    return network


def check_devices(devices: Sequence[Device], links: Links) -> tuple[Device, ...]:
    """Returns the devices as a tuple, if their names and those of the links fit."""
    for each in devices:
        if not isinstance(each, Device):
            raise TypeError(
                "devices is a list of tfdist.research.Device(name, speed, memory); received "
                f"{each!r} in it"
            )
    names = [each.name for each in devices]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"devices needs at least one device, each with a name of its own; received "
            f"{names}"
        )
    for pair in links.between:
        if not set(pair) <= set(names):
            raise ValueError(
                f"network has a link from {pair[0]!r} to {pair[1]!r}, and the devices "
                f"are {names}: name two of them"
            )
    return tuple(devices)
