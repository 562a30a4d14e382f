"""Checks of the paths that flags give."""

import os
import tempfile
from pathlib import Path

from launch.flags.errors import UsageError
from launch.job.paths import existing_part


def check_checkpoint_dir(directory: str | None, makes: bool) -> None:
    """Checks that checkpoints can be written to a directory, if one is given.

    Args:
        directory: The directory.
        makes: Whether to make it: some file systems refuse only then.
    """
    if directory is None:
        return
    if not directory.strip():
        raise UsageError(
            "--checkpoint_dir is empty: give a directory, or omit the flag"
        )
    _check_writable(existing_part(directory), f"--checkpoint_dir={directory}")
    if makes:
        try:
            os.makedirs(directory, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise UsageError(
                f"--checkpoint_dir={directory} cannot be made: {error.strerror}; choose "
                "another"
            ) from None


def _check_writable(directory: Path, flag: str) -> None:
    why = ""
    if not directory.is_dir():
        why = (
            f"{directory} is a file"
            if directory.exists()
            else f"there is no {directory}"
        )
    elif not os.access(directory, os.W_OK):
        is_fixed = os.statvfs(directory).f_flag & os.ST_RDONLY
        why = "its file system is read-only" if is_fixed else "permission denied"
        why = f"{directory} is not writable ({why})"
    if why:
        raise UsageError(f"{flag} cannot be made: {why}; choose another")


def check_output(path: str | None, flag: str) -> None:
    """Checks that a file can be written, if one is given."""
    if path is None:
        return
    if not path.strip() or os.path.isdir(path):
        raise UsageError(f"--{flag}={path} is not a file: give the path of one")
    _check_writable(Path(os.path.abspath(path)).parent, f"--{flag}={path}")
