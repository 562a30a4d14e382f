"""Paths that may not exist yet."""

import os
from pathlib import Path


def existing_part(path: str) -> Path:
    """Returns the path, or its nearest parent that exists."""
    whole = Path(path).absolute()
    return next(each for each in (whole, *whole.parents) if os.path.exists(each))
