"""Forecasts as a table and as a picture."""

import io
import os
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table

from tfdist import _picture
from tfdist.planning.forecast import Forecast

_WHAT_HELPS = (
    ("link, ", "more ps, or faster links"),
    ("cores of the fullest ps", "more ps"),
    ("interpreter", "more seconds of work in each step: larger batches"),
    ("chief's link", "data that the workers read themselves"),
    ("policy", "a looser bound"),
    ("steps themselves", "more workers"),
    ("the links", "more workers, or faster links"),
)


def table(forecasts: Sequence[Forecast]) -> str:
    """Returns a row for each number of workers."""
    found = rich.table.Table(box=rich.box.ROUNDED)
    has_end = any(each.epoch_seconds for each in forecasts)
    headings = ["workers", "steps/s", "speedup", *(["epoch"] if has_end else [])]
    for heading in [*headings, "busiest resource"]:
        found.add_column(heading, justify="right")
    for heading in ("limited by", "what helps"):
        found.add_column(heading)
    for each in forecasts:
        epoch = [duration(each.epoch_seconds or 0.0)] if has_end else []
        found.add_row(
            f"{each.workers:,}",
            f"{each.steps_per_second:,.1f}",
            f"{each.speedup:,.1f}",
            *epoch,
            f"{each.busy:.0%}",
            each.bound,
            what_helps(each.bound),
        )
    text = io.StringIO()
    # Rich shrinks a table to the width of its console.
    rich.console.Console(file=text, width=200).print(found)
    return text.getvalue()


def what_helps(bound: str) -> str:
    """Returns what raises the steps per second if something limits them."""
    return next((helps for part, helps in _WHAT_HELPS if part in bound), "")


def duration(seconds: float) -> str:
    """Returns a time for people.

    >>> duration(4.2), duration(150), duration(7300), duration(200_000)
    ('4.2 s', '2.5 min', '2.0 h', '2.3 days')
    """
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def plot(forecasts: Sequence[Forecast], path: str | os.PathLike[str]) -> None:
    """Draws steps per second by workers, beside a speedup without limits.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    _picture.check_path(path)
    figure = _picture.new_figure(7, 4.5)
    axes = figure.subplots()
    workers = [each.workers for each in forecasts]
    axes.plot(
        workers,
        [each.alone * each.workers for each in forecasts],
        ":",
        color="gray",
        label="without any limit",
    )
    axes.plot(
        workers,
        [each.steps_per_second for each in forecasts],
        marker="o",
        label="forecast",
    )
    for each in forecasts:
        axes.annotate(
            each.bound,
            (each.workers, each.steps_per_second),
            textcoords="offset points",
            xytext=(0, -12),
            ha="center",
            fontsize=7,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(workers, [f"{each:,}" for each in workers])
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.set_ylabel("steps per second")
    axes.legend()
    _picture.save(figure, path)
