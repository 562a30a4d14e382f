"""Plans of the ps for each variable of a model, as plain data.

`tfdist.planning.planner` makes a plan; `tfdist.planning.Planned` follows it.
"""

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tf_config.whole_file import write_whole
from tfdist._support.views import render, table_of
from tfdist.placement.partition import Partition
from tfdist.planning import file, view
from tfdist.planning.weight import PlannedVariable, Weight

if TYPE_CHECKING:
    from tfdist.placement.report import PlacementReport


@dataclass(frozen=True)
class Plan:
    """A plan of which ps will hold each variable of a model.

    Attributes:
        num_ps: The number of ps.
        variables: Every variable but the slots, in creation order.
        target: The requested imbalance.
        balance: The balanced quantity: `"memory"`, `"traffic"` or `"both"`.
    """

    num_ps: int
    variables: tuple[PlannedVariable, ...]
    target: float
    balance: str = "memory"

    @functools.cached_property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """The bytes on each ps, optimizer slots included."""
        totals = [0] * self.num_ps
        for each in self.variables:
            copies = 1 + len(each.weight.slots)
            if isinstance(each.home, int):
                totals[each.home] += copies * each.spec.size_bytes
                continue
            shards = each.home.bytes_per_ps(each.spec, self.num_ps)
            # A ps may hold several shards, and `shards` has their sum.
            for ps in set(each.home.ps):
                totals[ps] += copies * shards[ps]
        return tuple(totals)

    @functools.cached_property
    def traffic_per_ps(self) -> tuple[float, ...]:
        """The bytes that one step of one worker reads from and writes to each ps."""
        totals = [0.0] * self.num_ps
        for each in self.variables:
            traffic = each.weight.traffic
            for ps, share in each.shares():
                totals[ps] += traffic * share
        return tuple(totals)

    @property
    def imbalance(self) -> float:
        """The bytes on the fullest ps over the mean: 1.0 is perfect balance."""
        return _imbalance(self.bytes_per_ps)

    @property
    def traffic_imbalance(self) -> float:
        """The traffic of the busiest ps over the mean."""
        return _imbalance(self.traffic_per_ps)

    @property
    def bound(self) -> float:
        """The lower bound of the imbalance of any plan.

        It is 1.0, unless something that cannot be split is larger than the mean.
        """
        return self._over_mean(
            max(
                (w.memory * w.smallest_share(self.num_ps) for w in self._weights()),
                default=0.0,
            )
        )

    @property
    def unsplit_bound(self) -> float:
        """The lower bound of the imbalance of any plan without splits.

        Some ps holds the largest variable, and two of the `num_ps + 1` largest share
        a ps.
        """
        sizes = sorted((w.memory for w in self._weights()), reverse=True)
        pair = sum(sizes[self.num_ps - 1 : self.num_ps + 1])
        return self._over_mean(max([*sizes[:1], pair if len(sizes) > 1 else 0]))

    @property
    def split(self) -> tuple[PlannedVariable, ...]:
        """The variables that are split."""
        return tuple(v for v in self.variables if isinstance(v.home, Partition))

    @property
    def cuts(self) -> int:
        """The number of shards beyond one per variable."""
        return sum(len(each.shares()) - 1 for each in self.split)

    def __str__(self) -> str:
        tables = view.loads(self.bytes_per_ps, self.traffic_per_ps)
        if self.split:
            tables += view.splits(self.split)
        return (
            f"{tables}{len(self.variables):,} variables on {self.num_ps} ps, "
            f"{len(self.split)} of them split; cuts: {self.cuts}\n"
            f"fullest ps / mean: {self.imbalance:.4f} in memory (at best "
            f"{self.bound:.4f}; without splits at best {self.unsplit_bound:.4f}),"
            f" {self.traffic_imbalance:.4f} in traffic"
        )

    def table(self) -> str:
        """Returns a table of every variable and its ps."""
        return view.variables(self.variables)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws one bar per ps, memory and traffic, as a PNG file. Needs matplotlib.

        Raises:
            ValueError: If the file's name does not end with `.png`.
            ImportError: If matplotlib is not installed.
        """
        view.plot(
            path,
            ("MB of variables", self.bytes_per_ps, self.imbalance),
            ("MB a step", self.traffic_per_ps, self.traffic_imbalance),
        )

    def receipt(self, report: "PlacementReport") -> "Receipt":
        """Compares the plan with a strategy's `placement_report()`.

        Raises:
            TypeError: If `report` is not a `PlacementReport`.
            ValueError: If the report has another number of ps.
        """
        from tfdist.placement.report import PlacementReport

        if not isinstance(report, PlacementReport):
            raise TypeError(
                "a receipt compares a plan with a strategy's placement_report(); "
                f"received {report!r}"
            )
        if self.num_ps != report.num_ps:
            raise ValueError(
                f"the plan is of {self.num_ps} ps and the report of {report.num_ps}"
            )
        return Receipt(self.bytes_per_ps, report.bytes_per_ps)

    def to_json(self) -> str:
        """Returns the plan as JSON, one variable per line."""
        return file.to_json(self.num_ps, self.variables, self.target, self.balance)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanFileError: If the text is not a plan, or a variable is on no ps of it.
        """
        return cls(*file.from_json(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file atomically."""
        write_whole(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan from a file.

        Raises:
            PlanFileError: If the file is not a plan. The error names the file.
            OSError: If the file cannot be read.
        """
        return file.read(path, cls.from_json)

    def _weights(self) -> Iterator[Weight]:
        return (variable.weight for variable in self.variables)

    def _over_mean(self, least: float) -> float:
        mean = sum(self.bytes_per_ps) / self.num_ps
        return max(1.0, least / mean) if mean else 1.0


@dataclass(frozen=True)
class Receipt:
    """The planned and the actual bytes on each ps.

    Attributes:
        predicted: The bytes on each ps according to the plan.
        actual: The bytes on each ps according to the strategy's report.
    """

    predicted: tuple[int, ...]
    actual: tuple[int, ...]

    @property
    def matches(self) -> bool:
        """True if every ps holds exactly the planned bytes."""
        return self.predicted == self.actual

    def __str__(self) -> str:
        table = table_of("ps", ">predicted bytes", ">actual bytes", ">difference")
        rows = list(zip(self.predicted, self.actual, strict=True))
        for ps, (predicted, actual) in enumerate(rows):
            table.add_row(str(ps), *_cells(predicted, actual))
        table.add_section()
        totals = (sum(self.predicted), sum(self.actual))
        table.add_row("all", *_cells(*totals), style="bold")
        table.add_row(
            "fullest / mean",
            *(
                f"{max(each) * len(each) / total:.4f}" if total else "-"
                for each, total in zip(
                    (self.predicted, self.actual), totals, strict=True
                )
            ),
            "",
        )
        verdict = "as planned" if self.matches else "NOT as planned"
        return render(table) + verdict


def _cells(predicted: int, actual: int) -> tuple[str, str, str]:
    return f"{predicted:,}", f"{actual:,}", f"{actual - predicted:+,}"


def _imbalance(loads: tuple[float, ...]) -> float:
    total = math.fsum(loads)
    return max(loads) * len(loads) / total if total else 1.0
