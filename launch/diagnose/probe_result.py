"""What a probe finds at an address: plain data."""

import ipaddress
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Peer:
    """A TensorFlow server, as it describes itself.

    Attributes:
        task: The task that it serves, such as `worker:0`.
        version: Its TensorFlow, or None if it did not tell.
        clock: Seconds that its clock is ahead of ours; None if not told.
        uncertainty: The error of `clock`, at most, in seconds.
        tf_config: The TF_CONFIG that it was started with; None if not told.
        silence: Why something is None.
    """

    task: str
    version: str | None = None
    clock: float | None = None
    uncertainty: float = 0.0
    tf_config: str | None = None
    silence: str = ""


class ProbeOutcome(Enum):
    """The last step that an address came to; `TENSORFLOW` is the best."""

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
    """What was found at one address.

    Attributes:
        address: It, as it was given.
        outcome: How far the steps came.
        detail: What the system or the server said, where it is not TensorFlow's.
        ip: What the host's name stands for; '' if it was not found.
        is_here: Whether that is an address of this machine.
        peer: What the server says of itself.
    """

    address: str
    outcome: ProbeOutcome
    detail: str = ""
    ip: str = ""
    is_here: bool = False
    peer: Peer | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, to itself alone."""
        return bool(self.ip) and ipaddress.ip_address(self.ip).is_loopback
