"""Options for the checkpoints of `fit`."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from tf_config import contract


@dataclass
class CheckpointOptions:
    """The directory of `fit` checkpoints, their interval, and how many to keep.

    Without a directory (None) there are none. The interval is in seconds; the newest
    `to_keep` remain.
    """

    directory: str | os.PathLike[str] | None
    interval: float
    to_keep: int

    @classmethod
    def of_environment(cls) -> "CheckpointOptions":
        """Returns the directory that the launcher has named, and the usual numbers."""
        return cls(os.environ.get(contract.CHECKPOINT_DIR), interval=30.0, to_keep=3)

    def __post_init__(self) -> None:
        # Not `<= 0`, which is false for NaN.
        if not self.interval > 0:
            raise ValueError(
                f"checkpoint_interval must be > 0 seconds; received {self.interval!r}"
            )
        if not (isinstance(self.to_keep, int) and self.to_keep > 0):
            raise ValueError(
                f"checkpoints_to_keep must be an integer > 0; received {self.to_keep!r}"
            )


@contextlib.contextmanager
def told_if_not_kept(options: CheckpointOptions) -> Iterator[None]:
    """Surrounds a call; tells who interrupts it if there are no checkpoints."""
    try:
        yield
    except KeyboardInterrupt as error:
        if options.directory is None and not error.args:
            error.args = (
                "no checkpoint was kept; the launcher's --checkpoint_dir keeps some",
            )
        raise
