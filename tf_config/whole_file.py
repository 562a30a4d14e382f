"""Write a file so that nobody ever reads half of it."""

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file atomically.

    Raises:
        OSError: If the file cannot be written.
    """
    path = Path(path)
    # In the same directory, since a rename is atomic only within one file system.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
