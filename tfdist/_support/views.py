"""The only tables and pictures: text that rich draws, and PNG files of matplotlib.

Both are imported late: rich takes longer to import than a plan to make, and matplotlib
may not be installed.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_config.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

BAR = 30  # characters


def table_of(*headings: str, title: str | None = None) -> Table:
    """Returns an empty table; a `>` before a heading aligns its column right."""
    import rich.box
    import rich.table

    table = rich.table.Table(box=rich.box.ROUNDED, title=title)
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(heading.lstrip(">"), justify="right" if right else "left")
    return table


def render(table: Table) -> str:
    """Returns a table as text, without truncating any cell."""
    import rich.console

    text = io.StringIO()
    # Rich shrinks a table to the width of its console.
    rich.console.Console(file=text, width=10_000).print(table)
    return text.getvalue()


def bar(amount: float, largest: float) -> str:
    """Returns a bar whose length is proportional to `amount`."""
    return "#" * round(BAR * amount / largest) if largest else ""


def check_picture_path(path: str | os.PathLike[str]) -> None:
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
            "pip install matplotlib (the extra `plot`)"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_picture(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure as a PNG file: all of it, or nothing."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_whole(path, picture.getvalue())
