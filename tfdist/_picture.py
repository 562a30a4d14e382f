"""Pictures: PNG files that matplotlib draws, where it is installed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist._whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_path(path: str | os.PathLike[str]) -> None:
    """Checks that the name of a picture's file ends with `.png`.

    Raises:
        ValueError: If it does not.
    """
    if Path(path).suffix.lower() != ".png":
        raise ValueError(
            f"pictures are PNG files, for example {Path(path).stem}.png; "
            f"received {os.fspath(path)!r}"
        )


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of this size in inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a plot needs matplotlib, which tfdist does not install by itself: "
            "pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure as a PNG file: all of it, or nothing."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_whole(path, picture.getvalue())
