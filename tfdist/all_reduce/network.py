"""What connects the devices of an all-reduce, as the cost model sees it."""

from dataclasses import dataclass


class CostError(ValueError):
    """A number that no network or tensor has: the message says which are allowed."""


@dataclass(frozen=True)
class Network:
    """What connects the devices. Each device has one full-duplex interface.

    Attributes:
        latency: Seconds that an empty message takes on an idle network.
        bandwidth: Bytes per second that an interface can send, and receive at the same
            time.
        seconds_per_reduced_byte: Seconds that a device takes to add one byte of a
            message to its own.
        seconds_per_message: The part of `latency` during which the interface is busy,
            so that the next message of the step has to wait (the gap of Culler et al.,
            "LogP: towards a realistic model of parallel computation", PPoPP 1993).
            None: the whole latency, as if an interface sent one message at a time,
            which is what Chan et al. assume.
        processor_seconds_per_message: Processor time per message, where all devices
            share their processors, as namespaces or containers of one machine do. It
            passes while bytes travel: whichever takes longer counts.
        processor_seconds_per_byte: Processor time per byte, under the same condition.
            All algorithms send the same number of bytes in total, but where processors
            are slower than links, the links no longer matter.

    Raises:
        CostError: If a number is negative, the bandwidth is 0, or
            `seconds_per_message` exceeds the latency.
    """

    latency: float
    bandwidth: float
    seconds_per_reduced_byte: float
    seconds_per_message: float | None = None
    processor_seconds_per_message: float = 0.0
    processor_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        # `not x > 0`, and not `x <= 0`, which NaN would pass.
        if not self.bandwidth > 0:
            raise CostError(f"bandwidth must be above 0 bytes/s, not {self.bandwidth}")
        for name in (
            "latency",
            "seconds_per_reduced_byte",
            "processor_seconds_per_message",
            "processor_seconds_per_byte",
        ):
            if not getattr(self, name) >= 0:
                raise CostError(
                    f"{name} must be at least 0 s, not {getattr(self, name)}"
                )
        if not 0 <= self.gap <= self.latency:
            raise CostError(
                "seconds_per_message must be between 0 and the latency, "
                f"{self.latency} s, not {self.seconds_per_message}"
            )

    @property
    def gap(self) -> float:
        """Seconds between two empty messages of one interface."""
        if self.seconds_per_message is None:
            return self.latency
        return self.seconds_per_message


def checked_size(size_bytes: int) -> int:
    """Returns the size of a tensor."""
    if size_bytes < 0:
        raise CostError(
            f"the size of a tensor must be at least 0 bytes, not {size_bytes}"
        )
    return size_bytes
