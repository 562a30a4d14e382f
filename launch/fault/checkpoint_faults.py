"""Faults of checkpoints: a truncated file, and a full file system."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from launch.fault.faults import FaultError
from launch.job.paths import existing_part
from tf_config.contract import CHECKPOINT_PREFIX

_LARGEST_FILLED = 1 << 30
_BALLAST = ".ballast"
_CHUNK = 1 << 20


def newest(directory: str) -> Path | None:
    """Returns the newest checkpoint below a directory; None if there is no older one."""
    found = sorted(
        Path(directory).rglob(f"{CHECKPOINT_PREFIX}*"),
        # Names sort by number, since the number is padded to 8 digits.
        key=lambda path: (path.parent, path.name),
    )
    # The job must be able to fall back on an older checkpoint of the same directory.
    if len(found) < 2 or found[-2].parent != found[-1].parent:
        return None
    return found[-1]


def cut_short(checkpoint: Path) -> None:
    """Truncates the largest file of a checkpoint to half, like a torn write."""
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def check_can_be_filled(directory: str) -> None:
    """Checks that the file system is small enough to be one made for this purpose."""
    size = shutil.disk_usage(existing_part(directory)).total
    if size > _LARGEST_FILLED:
        raise FaultError(
            f"'full_disk' fills the file system of {directory}, which has "
            f"{size >> 20} MiB and may be in use: choose a directory on one with at most "
            f"{_LARGEST_FILLED >> 20} MiB, such as mount -t tmpfs -o size=64m tmpfs DIR"
        )


def fill(directory: str) -> Callable[[], None]:
    """Fills the file system of a directory; returns a function that frees it."""
    os.makedirs(directory, exist_ok=True)  # The script may not have created it yet.
    ballast = Path(directory, _BALLAST)
    # Unbuffered: a full buffer would fail once more when the file is closed.
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * _CHUNK)
        except OSError as error:
            # A quota may end the writes before the file system is full.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
    return lambda: ballast.unlink(missing_ok=True)
