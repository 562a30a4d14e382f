"""Views of a split as a table and as a picture."""

import os
from collections.abc import Sequence

import numpy as np

from tfdist._support import views
from tfdist.research.federated.splits import Split, counts


def table(split: Split, labels: Sequence[int] | np.ndarray, rows: int = 20) -> str:
    """Returns the number of examples of each class per client.

    Args:
        split: The indices of each client.
        labels: Class numbers of all examples.
        rows: How many clients to show; the last row is the sum over all of them.
    """
    classes = np.unique(np.asarray(labels))
    found = views.table_of(*(f">{each}" for each in ("client", "examples", *classes)))
    amounts = counts(split, labels)
    for client, each in enumerate(amounts[:rows]):
        found.add_row(
            str(client), f"{each.sum():,}", *(f"{n:,}" if n else "" for n in each)
        )
    if len(amounts) > rows:
        found.add_row(f"{len(amounts) - rows} more")
    found.add_section()
    total = amounts.sum(axis=0)
    found.add_row("all", f"{total.sum():,}", *(f"{each:,}" for each in total))
    return views.render(found)


def plot(
    split: Split,
    labels: Sequence[int] | np.ndarray,
    path: str | os.PathLike[str],
) -> None:
    """Draws a bar per client, with a colour per class.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    views.check_picture_path(path)
    amounts = counts(split, labels)
    classes = np.unique(np.asarray(labels))
    figure = views.new_figure(7, 1.5 + 0.2 * min(len(split), 40))
    from matplotlib import colormaps

    axes = figure.subplots()
    starts = np.cumsum(amounts, axis=1) - amounts
    for column, name in enumerate(classes):
        axes.barh(
            np.arange(len(split)),
            amounts[:, column],
            left=starts[:, column],
            color=colormaps["tab20"](column % 20),
            label=str(name),
        )
    axes.invert_yaxis()
    axes.set_xlabel("examples")
    axes.set_ylabel("client")
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5))
    views.save_picture(figure, path)
