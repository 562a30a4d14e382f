"""Paths that need not exist yet."""

import os
from pathlib import Path


def existing_part(path: str) -> Path:
    """The path, or the nearest directory above it that exists."""
    whole = Path(path).absolute()
    return next(each for each in (whole, *whole.parents) if os.path.exists(each))
