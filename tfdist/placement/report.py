"""Reports of variable placement and of worker steps; they print as tables."""

import statistics
from dataclasses import dataclass, field

from tfdist._support.views import render, table_of
from tfdist.placement.link_use import LinkUse
from tfdist.placement.variable_spec import VariableSpec

_LARGE = 2**19
"""Bytes from which a variable is worth splitting, on any link."""


@dataclass(frozen=True)
class PlacedVariable:
    """A variable, and the index of the ps that holds it."""

    spec: VariableSpec
    ps: int


UNEVEN = 1.25
"""From this imbalance on, the link of the fullest ps holds up the steps."""


@dataclass(frozen=True)
class PlacementReport:
    """The ps of every variable.

    Attributes:
        num_ps: The number of ps, including empty ones.
        variables: Every variable on a ps, with optimizer slots, in creation order.
    """

    num_ps: int
    variables: tuple[PlacedVariable, ...]

    def on(self, ps: int) -> tuple[VariableSpec, ...]:
        """The variables on the ps with this index."""
        return tuple(v.spec for v in self.variables if v.ps == ps)

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """The bytes of the variables on each ps."""
        return tuple(
            sum(spec.size_bytes for spec in self.on(ps)) for ps in range(self.num_ps)
        )

    @property
    def imbalance(self) -> float:
        """The bytes on the fullest ps over the mean: 1.0 is perfect balance."""
        total = sum(self.bytes_per_ps)
        return max(self.bytes_per_ps) * self.num_ps / total if total else 1.0

    @property
    def advice(self) -> str:
        """Advice if one variable is more than a ps's share; "" if none is.

        No placement evens that out, and each step moves the variable over one link.

        >>> kernel = PlacedVariable(VariableSpec("kernel", (784, 256), "float32", 4), 0)
        >>> "max_shards=2" in PlacementReport(2, (kernel,)).advice
        True
        """
        fullest = self.bytes_per_ps.index(max(self.bytes_per_ps, default=0))
        largest = max(self.on(fullest), key=lambda spec: spec.size_bytes, default=None)
        if self.imbalance < UNEVEN or not largest or largest.size_bytes < _LARGE:
            return ""
        return (
            f"{largest.name} is large, and on ps {fullest} alone: "
            "ParameterServerStrategy(variable_partitioner=tfdist.MinSizePartitioner("
            f"{_LARGE // 2}, max_shards={self.num_ps})) splits such weights"
        )

    def __str__(self) -> str:
        table = table_of("ps", "variable", "shape", "dtype", ">bytes")
        for ps, total in enumerate(self.bytes_per_ps):
            specs = self.on(ps)
            for spec in specs:
                shape = " x ".join(map(str, spec.shape)) or "scalar"
                size = f"{spec.size_bytes:,}"
                table.add_row(str(ps), spec.name, shape, spec.dtype, size)
            table.add_row(
                str(ps), f"{len(specs)} variables", "", "", f"{total:,}", style="bold"
            )
            table.add_section()
        balance = f"fullest ps / mean: {self.imbalance:.3f} (1 is perfect)"
        return render(table) + "\n".join(filter(None, [balance, self.advice]))


STRAGGLER_SHARE = 0.5
"""A worker with less than this share of the median worker's steps is a straggler."""

MIN_MEDIAN_STEPS = 10
"""Below this median, chance alone may leave a worker with half the steps."""


@dataclass(frozen=True)
class WorkerReport:
    """The number of training steps that each worker ran, as counted by the worker.

    Attributes:
        steps: One number per worker, in task index order. A restarted worker counts
            from its restart.
        link_use: How long a worker waits for its link in a step; None if that is not
            known, as before the first epoch of `fit`.
    """

    steps: tuple[int, ...]
    link_use: LinkUse | None = field(default=None, repr=False)

    @property
    def stragglers(self) -> tuple[int, ...]:
        """The workers that ran fewer than half as many steps as the median worker.

        A worker takes a step whenever it is free, so equally fast workers run about
        equally many. Empty while the median is below 10 steps. A restarted worker has
        had less time: see `since`.

        >>> WorkerReport((98, 103, 9, 100)).stragglers
        (2,)
        """
        median = statistics.median(self.steps) if self.steps else 0
        if median < MIN_MEDIAN_STEPS:
            return ()
        few = STRAGGLER_SHARE * median
        return tuple(worker for worker, n in enumerate(self.steps) if n < few)

    def since(self, earlier: "WorkerReport") -> "WorkerReport":
        """The steps since an earlier report, or since a worker's restart.

        >>> WorkerReport((130, 20)).since(WorkerReport((100, 60)))
        WorkerReport(steps=(30, 20))
        """
        # A count below the earlier one is that of a worker that restarted at 0.
        pairs = zip(self.steps, earlier.steps, strict=True)
        return WorkerReport(tuple(n - m if n >= m else n for n, m in pairs))

    def __str__(self) -> str:
        total = sum(self.steps)
        stragglers = self.stragglers
        table = table_of("worker", ">training steps", ">share")
        if stragglers:
            table.add_column()
        for worker, steps in enumerate(self.steps):
            row = [str(worker), f"{steps:,}", f"{steps / total:.0%}" if total else "-"]
            if worker in stragglers:
                median = statistics.median(self.steps)
                row.append(f"straggler: {steps / median:.0%} of the median worker's")
            table.add_row(*row)
        table.add_section()
        table.add_row("all", f"{total:,}", "", style="bold")
        said = "" if self.link_use is None else str(self.link_use)
        return (render(table) + said).rstrip("\n")
