"""The state of a server in a file that is never half-written."""

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAME = "server.npz"


def save(
    directory: str | os.PathLike[str], about: str, state: Mapping[str, np.ndarray]
) -> None:
    """Writes a state in place of the last one; `load` asks for the same `about`."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    unfinished = path / f"{_NAME}.{os.getpid()}"
    arrays: dict[str, Any] = {"about": np.array(about), **state}
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    # A rename is atomic: a crash leaves the old file, or the new one.
    unfinished.replace(path / _NAME)


def load(directory: str | os.PathLike[str], about: str) -> dict[str, np.ndarray] | None:
    """Returns the last state, or None if there is none.

    Raises:
        ValueError: If it belongs to another experiment, or the file is damaged.
    """
    path = Path(directory) / _NAME
    if not path.exists():
        return None
    try:
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Restore it from a copy, or delete it to begin "
            "anew"
        ) from error
    if (other := str(found.pop("about"))) != about:
        raise ValueError(
            f"{path} belongs to another experiment. This one is\n  {about}\nand it has\n"
            f"  {other}\nChoose another directory, or delete it to begin anew"
        )
    return found
