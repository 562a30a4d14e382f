"""Which ps will hold each variable of a model, as plain data. Imports no TensorFlow.

`tfdist.planning.planner` makes a plan; `tfdist.Planned` follows it.
"""

import functools
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdist._whole_file import write_whole
from tfdist.placement.partition import Partition
from tfdist.placement.variable_spec import VariableSpec

if TYPE_CHECKING:
    from tfdist.placement.report import PlacementReport
    from tfdist.planning.receipt import Receipt

BALANCES = ("memory", "traffic", "both")


@dataclass(frozen=True)
class Weight:
    """A variable to place, and what matters for its placement.

    Attributes:
        spec: The variable.
        slots: The names of the optimizer's slots, each of the variable's size, which
            live beside it, shard by shard.
        lookups: The number of rows of an embedding that a step looks up; None for a
            variable that moves whole.
        divisible: Whether it can be split over several ps.
        rows_only: Whether it can be split along the first axis only.
        dealt: Whether it is in the `mod` layout (`partition_strategy="mod"`), whose
            shards are even.
    """

    spec: VariableSpec
    slots: tuple[str, ...] = ()
    lookups: int | None = None
    divisible: bool = True
    rows_only: bool = False
    dealt: bool = False

    @property
    def memory(self) -> int:
        """The bytes of the variable and its slots."""
        return self.spec.size_bytes * (1 + len(self.slots))

    @property
    def traffic(self) -> int:
        """The bytes that a step moves: the value to the worker, and its update back.

        Slots do not move. Of an embedding only the rows that are looked up move, at most
        all of them.
        """
        if self.lookups is None or not self.spec.shape:
            return 2 * self.spec.size_bytes
        rows = max(1, self.spec.shape[0])
        return 2 * self.spec.size_bytes * min(self.lookups, rows) // rows

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that it can be split along."""
        if not self.divisible:
            return ()
        rows_only = self.rows_only or self.dealt
        lengths = self.spec.shape[:1] if rows_only else self.spec.shape
        return tuple(axis for axis, length in enumerate(lengths) if length > 1)

    def smallest_share(self, num_ps: int) -> float:
        """The least that the fullest ps can hold of the variable, from 0 to 1."""
        lengths = [self.spec.shape[axis] for axis in self.axes]
        return min((-(-n // num_ps) / n for n in lengths), default=1.0)


@dataclass(frozen=True)
class PlannedVariable:
    """A variable, and its ps or the ps of its shards."""

    weight: Weight
    home: int | Partition

    @property
    def spec(self) -> VariableSpec:
        """The variable."""
        return self.weight.spec

    @property
    def partition(self) -> Partition | None:
        """The shards; None if it is not split."""
        return self.home if isinstance(self.home, Partition) else None

    def shares(self) -> tuple[tuple[int, float], ...]:
        """The ps of each shard, and the fraction of the variable there, from 0 to 1."""
        if isinstance(self.home, int):
            return ((self.home, 1.0),)
        whole = self.home.bounds[-1].stop
        return tuple((shard.ps, shard.size / whole) for shard in self.home.bounds)


@dataclass(frozen=True)
class Plan:
    """Which ps will hold each variable of a model.

    Attributes:
        num_ps: The number of ps.
        variables: Every variable but the slots, in creation order.
        target: The requested imbalance.
        balance: What was balanced: `"memory"`, `"traffic"` or `"both"`.
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
        # Here and below: `view` and `file` import this module.
        from tfdist.planning import view

        return view.summary(self)

    def table(self) -> str:
        """Returns a table of every variable and its ps."""
        from tfdist.planning import view

        return view.table(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws one bar per ps, memory and traffic, as a PNG file. Needs matplotlib.

        Raises:
            ValueError: If the file's name does not end with `.png`.
            ImportError: If matplotlib is not installed.
        """
        from tfdist.planning import view

        view.plot(self, path)

    def receipt(self, report: "PlacementReport") -> "Receipt":
        """Compares the plan with what a strategy's `placement_report()` says.

        Raises:
            TypeError: If `report` is not a `PlacementReport`.
            ValueError: If the report has another number of ps.
        """
        from tfdist.planning.receipt import Receipt

        return Receipt.of(self, report)

    def to_json(self) -> str:
        """Returns the plan as JSON, one variable per line."""
        from tfdist.planning import file

        return file.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanFileError: If the text is not a plan, or a variable is on no ps of it.
        """
        from tfdist.planning import file

        return file.from_json(text)

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
        from tfdist.planning import file

        return file.load(path)

    def _weights(self) -> "map[Weight]":
        return map(_weight_of, self.variables)

    def _over_mean(self, least: float) -> float:
        mean = sum(self.bytes_per_ps) / self.num_ps
        return max(1.0, least / mean) if mean else 1.0


def _weight_of(variable: PlannedVariable) -> Weight:
    return variable.weight


def _imbalance(loads: tuple[float, ...]) -> float:
    total = math.fsum(loads)
    return max(loads) * len(loads) / total if total else 1.0
