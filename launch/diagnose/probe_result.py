"""Results of a probe of an address, as plain data."""

import ipaddress
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Peer:
    """A TensorFlow server, as it describes itself.

    Attributes:
        task: The task that it serves, such as `worker:0`.
        version: Its TensorFlow version; None if unknown.
        clock: How far its clock is ahead of ours, in seconds; None if unknown.
        uncertainty: The largest possible error of `clock`, in seconds.
        tf_config: The TF_CONFIG it was started with; None if unknown.
        silence: Why something is unknown.
    """

    task: str
    version: str | None = None
    clock: float | None = None
    uncertainty: float = 0.0
    tf_config: str | None = None
    silence: str = ""


class ProbeOutcome(Enum):
    """The stages that a probe reaches, from worst to best."""

    NO_SUCH_HOST = "no such host"
    LOOKUP_SLOW = "the lookup of the host took too long"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    STRANGER = "stranger"
    NOT_TENSORFLOW = "not TensorFlow"
    TENSORFLOW = "TensorFlow"


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe of one address.

    Attributes:
        address: The address as it was given.
        outcome: How far the probe got.
        detail: The answer of the system or of another kind of server.
        ip: The IP address of the host; '' if the lookup failed.
        is_here: Whether `ip` is an address of this machine.
        peer: The TensorFlow server's description of itself.
    """

    address: str
    outcome: ProbeOutcome
    detail: str = ""
    ip: str = ""
    is_here: bool = False
    peer: Peer | None = None

    @property
    def is_loopback(self) -> bool:
        """True if the address is a loopback address."""
        return bool(self.ip) and ipaddress.ip_address(self.ip).is_loopback
