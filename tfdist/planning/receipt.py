"""Compares a plan with the actual placement."""

from dataclasses import dataclass

from tfdist.placement.report import PlacementReport
from tfdist.planning import view
from tfdist.planning.plan import Plan


@dataclass(frozen=True)
class Receipt:
    """The planned and the actual bytes on each ps.

    Attributes:
        predicted: The bytes on each ps according to the plan.
        actual: The bytes on each ps according to the strategy's report.
    """

    predicted: tuple[int, ...]
    actual: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, report: PlacementReport) -> "Receipt":
        """Compares a plan with a report.

        Raises:
            TypeError: If `report` is not a `PlacementReport`.
            ValueError: If the plan and the report differ in the number of ps.
        """
        if not isinstance(report, PlacementReport):
            raise TypeError(
                "a receipt compares a plan with a strategy's placement_report(); "
                f"received {report!r}"
            )
        if plan.num_ps != report.num_ps:
            raise ValueError(
                f"the plan is of {plan.num_ps} ps and the report of {report.num_ps}"
            )
        return cls(plan.bytes_per_ps, report.bytes_per_ps)

    @property
    def matches(self) -> bool:
        """Whether every ps holds exactly what was planned."""
        return self.predicted == self.actual

    def __str__(self) -> str:
        table = view.table_of("ps", ">predicted bytes", ">actual bytes", ">difference")
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
        return view.render(table) + verdict


def _cells(predicted: int, actual: int) -> tuple[str, str, str]:
    return f"{predicted:,}", f"{actual:,}", f"{actual - predicted:+,}"
