"""Reports of how stale steps were and how long workers waited. Pure."""

import os
from dataclasses import dataclass

import numpy as np

from tfdist._support import views
from tfdist._support.views import render, table_of

_COLUMNS = 10  # of a table; beyond, each is twice as wide as the one before


@dataclass(frozen=True, eq=False)
class StalenessReport:
    """The staleness of the steps of each worker, and their time, as counted on a ps.

    The staleness of a step is the number of steps of other workers that were allowed to write
    between its start and its own write.

    Attributes:
        counts: How many steps of each worker had a staleness of 0, 1, and so on; the last
            column has all that were above. An integer array of shape
            `[num_workers, columns]`.
        seconds: How long each worker has waited for its turn, and how long its steps took
            in all. An array of shape `[num_workers, 2]`.
        dropped: How many gradients of each worker came after their round was full, and
            are not among the counts. An integer array of shape `[num_workers]`.
        names: The name of each row, by default its number. If workers have several
            devices, each device has a row.
    """

    counts: np.ndarray
    seconds: np.ndarray
    dropped: np.ndarray
    names: tuple[str, ...] = ()

    def since(self, earlier: "StalenessReport") -> "StalenessReport":
        """Returns the counts since an earlier report."""
        return StalenessReport(
            self.counts - earlier.counts,
            self.seconds - earlier.seconds,
            self.dropped - earlier.dropped,
            self.names,
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return self.names or tuple(map(str, range(len(self.counts))))

    @property
    def steps(self) -> int:
        """The number of steps, without those whose gradients were dropped."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean staleness; 0 without steps."""
        return _mean(self.counts.sum(axis=0))

    @property
    def maximum(self) -> int:
        """The largest staleness; 0 without steps."""
        return _maximum(self.counts.sum(axis=0))

    @property
    def waiting_share(self) -> float:
        """The share of their time that workers have waited; 0 without steps."""
        return _share(self.seconds.sum(axis=0))

    def __str__(self) -> str:
        bins = _bins(self.maximum)
        names = [
            str(first) if first == last else f"{first}-{last}" for first, last in bins
        ]
        has_dropped = bool(self.dropped.any())
        first = ("steps", "dropped") if has_dropped else ("steps",)
        headings = (*first, "mean", "max", "waited", *names)
        table = table_of("worker", *(f">{each}" for each in headings))
        rows = list(
            zip(self._names, self.counts, self.seconds, self.dropped, strict=True)
        )
        everybody = [
            each.sum(axis=0) for each in (self.counts, self.seconds, self.dropped)
        ]
        for name, counts, seconds, dropped in [*rows, ("all", *everybody)]:
            if name == "all":
                table.add_section()
            table.add_row(
                name,
                f"{counts.sum():,}",
                *([f"{dropped:,}"] if has_dropped else []),
                f"{_mean(counts):.2f}",
                str(_maximum(counts)),
                f"{_share(seconds):.1%}",
                *(f"{counts[first : last + 1].sum():,}" for first, last in bins),
            )
        return render(table).rstrip("\n")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the histogram of each worker, and how long it waited, as a PNG file.

        Raises:
            ValueError: If the file's name does not end with `.png`.
            ImportError: If matplotlib is not installed.
        """
        views.check_picture_path(path)
        figure = views.new_figure(9.0, 3.5)
        left, right = figure.subplots(1, 2)
        num_workers = len(self.counts)
        columns = np.arange(self.maximum + 1)
        width = 0.8 / num_workers
        for i, (name, counts) in enumerate(zip(self._names, self.counts, strict=True)):
            place = columns + (i - (num_workers - 1) / 2) * width
            left.bar(place, counts[: len(columns)], width, label=f"worker {name}")
        left.set(xlabel="staleness in steps", ylabel="steps")
        left.legend()
        waited = [100 * _share(each) for each in self.seconds]
        right.bar(range(num_workers), waited)
        right.set(
            xlabel="worker",
            ylabel="% of its time waited",
            xticks=range(num_workers),
            xticklabels=self._names,
        )
        views.save_picture(figure, path)


def _bins(maximum: int) -> list[tuple[int, int]]:
    """Returns the first and the last staleness of each column of a table.

    >>> _bins(3)
    [(0, 0), (1, 1), (2, 2), (3, 3)]
    >>> _bins(20)[-3:]
    [(5, 8), (9, 16), (17, 32)]
    """
    if maximum <= _COLUMNS:
        return [(value, value) for value in range(maximum + 1)]
    bins = [(0, 0), (1, 1), (2, 2)]
    while bins[-1][1] < maximum:
        last = bins[-1][1]
        bins.append((last + 1, 2 * last))
    return bins


def _mean(counts: np.ndarray) -> float:
    # The last column has all that is above, too: then this is a lower bound.
    return float((counts * np.arange(len(counts))).sum() / max(counts.sum(), 1))


def _maximum(counts: np.ndarray) -> int:
    # The sum of one number, or of none where no step was counted.
    return int(np.flatnonzero(counts)[-1:].sum())


def _share(seconds: np.ndarray) -> float:
    waited, in_all = seconds
    return float(waited / in_all) if in_all else 0.0
