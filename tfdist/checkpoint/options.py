"""Where `fit` keeps checkpoints, how often it writes one, and how many it keeps."""

import os
from dataclasses import dataclass


@dataclass
class CheckpointOptions:
    """The checkpoints of each `fit`.

    Attributes:
        directory: Where they are; None for no checkpoints.
        interval: The time between two of them, in seconds.
        to_keep: How many of the newest are kept of each `fit`.

    Raises:
        ValueError: If the time or the number is not positive.
    """

    directory: str | os.PathLike[str] | None
    interval: float
    to_keep: int

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ValueError(
                f"checkpoint_interval must be > 0 seconds; received {self.interval!r}"
            )
        if not (isinstance(self.to_keep, int) and self.to_keep > 0):
            raise ValueError(
                f"checkpoints_to_keep must be an integer > 0; received {self.to_keep!r}"
            )
