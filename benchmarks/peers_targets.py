"""What tfdist was to reach beside its peers, and whether it did."""

from collections.abc import Sequence
from dataclasses import dataclass

from peers_results import Measured, Spread, cpu, rate

MAIN = "mlp-sgd, 2 ps and 2 workers"

_RATE, _CPU = "steps/s", "CPU per step"


@dataclass(frozen=True)
class Target:
    """What was to be reached.

    Attributes:
        workload: The label of the workload.
        contender: Ours.
        others: Compared with the fastest of these.
        of: `steps/s`, of which at least `bound` times as many, or `CPU per step`, of
            which at most as much.
        bound: The ratio.
    """

    workload: str
    contender: str
    others: tuple[str, ...]
    of: str
    bound: float

    def found(self, measured: Measured) -> tuple[str, Spread] | None:
        """Returns the peer to compare with and the ratio; None if not measured."""
        names = {each.contender for each in measured.rounds}
        others = [other for other in self.others if other in names]
        if self.contender not in names or not others:
            return None
        fastest = max(others, key=lambda each: measured.spread(each, rate).median)
        value = rate if self.of == _RATE else cpu
        return fastest, measured.ratio(self.contender, fastest, value)

    def reached(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio >= self.bound if self.of == _RATE else ratio <= self.bound


TARGETS = (
    Target(MAIN, "tfdist-x10", ("mxnet",), _RATE, 1.2),
    Target(MAIN, "tfdist-x1", ("mxnet",), _RATE, 1.0),
    Target(MAIN, "tfdist-every10", ("paddle",), _RATE, 1.2),
    Target(MAIN, "tfdist-x10", ("mxnet",), _CPU, 0.95),
    Target(MAIN, "tfdist-x10", ("tf_keras-x10",), _RATE, 3.0),
    Target(
        "mlp-adam, 2 ps and 2 workers",
        "tfdist-x10",
        ("mxnet", "tf1", "torch-rpc"),
        _RATE,
        1.2,
    ),
    Target(
        "cnn-adam, 2 ps and 2 workers",
        "tfdist-x10",
        ("mxnet", "tf1", "torch-rpc"),
        _RATE,
        1.2,
    ),
)


def targets(every: Sequence[Measured]) -> list[list[str]]:
    """Returns a heading, and a row for each target that was measured."""
    rows = [["workload", "ratio", "of", "median (min to max)", "target", ""]]
    by_workload = {measured.workload: measured for measured in every}
    for target in TARGETS:
        measured = by_workload.get(target.workload)
        if measured is None or (found := target.found(measured)) is None:
            continue
        other, ratio = found
        sign = "at least" if target.of == _RATE else "at most"
        rows.append(
            [
                target.workload,
                f"{target.contender} / {other}",
                target.of,
                str(ratio),
                f"{sign} {target.bound:g}",
                "reached" if target.reached(ratio.median) else "missed",
            ]
        )
    return rows
