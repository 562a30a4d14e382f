"""What tfdist was to reach beside its peers, and whether it did."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pages
from peers_results import Measured, cpu, rate
from turns import Spread

MAIN = "mlp-sgd, 2 ps and 2 workers"
LARGE = "mlp-sgd, 4 ps and 8 workers"
SLOW, FAST = f"{MAIN}, links of 200mbit", f"{MAIN}, links of 1gbit"
LARGE_FAST = f"{LARGE}, links of 1gbit"

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
    Target("recommender, 2 ps and 2 workers", "tfdist-x10", ("paddle",), _RATE, 2.0),
    Target(
        "recommender, 2 ps and 2 workers, links of 1gbit",
        "tfdist-x10",
        ("paddle",),
        _RATE,
        2.0,
    ),
    Target(SLOW, "tfdist-x10", ("mxnet",), _RATE, 1.8),
    Target(SLOW, "tfdist-bfloat16", ("mxnet",), _RATE, 3.4),
    Target(FAST, "tfdist-x10", ("mxnet",), _RATE, 1.8),
    Target(FAST, "tfdist-bfloat16", ("mxnet",), _RATE, 3.4),
    Target(LARGE_FAST, "tfdist-x10", ("mxnet",), _RATE, 1.6),
)
# Workload, contender, and the share of the steps that its links allow with float32.
LINKS = (
    (SLOW, "tfdist-x10", 0.88),
    (SLOW, "tfdist-bfloat16", 1.7),
    (FAST, "tfdist-x10", 0.82),
    (FAST, "tfdist-bfloat16", 1.55),
    (LARGE_FAST, "tfdist-x10", 0.8),
)

# Workload, contender, and the CPU milliseconds per step that its chief may take.
CHIEFS = ((MAIN, "tfdist-x1", 0.4), (MAIN, "tfdist-arrays", 1.0))
# A contender may have this much more loss than another that also merges. What it has
# not seen depends on how soon each overfits, too; progress is the loss on what it has.
LOSS = (MAIN, "tfdist-every10", "paddle", 1.02)
# A contender may not fall behind its peer as the cluster grows.
GROWTH = (("tfdist-x1", "mxnet"), ("tfdist-x10", "mxnet"))


def targets(every: Sequence[Measured]) -> str:
    """Says how many targets were reached, with a row for each that was missed."""
    rows: list[list[str]] = []
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
                f"{target.of}, {target.contender} / {other}",
                str(ratio),
                f"{sign} {target.bound:g}",
                _verdict(target.reached(ratio.median)),
            ]
        )
    rows += [*_links(by_workload), *_chiefs(by_workload), *_loss(by_workload)]
    rows += _growth(by_workload)
    missed = [row[:-1] for row in rows if row[-1] != _verdict(True)]
    return (
        f"Of {len(rows)} targets, {len(rows) - len(missed)} were reached. Missed:\n\n"
        + pages.table(["workload", "what", "median (min to max)", "target"], missed)
    )


def _links(by_workload: Mapping[str, Measured]) -> Iterator[list[str]]:
    for workload, name, bound in LINKS:
        if _has(by_workload, workload, name):
            measured = by_workload[workload]
            limit = measured.environment["limit"]
            share = measured.spread(name, lambda r, most=limit: rate(r) / most)
            what = f"steps/s, {name} / those of the links"
            reached = _verdict(share.median >= bound)
            yield [workload, what, str(share), f"at least {bound:g}", reached]


def _chiefs(by_workload: Mapping[str, Measured]) -> Iterator[list[str]]:
    for workload, name, bound in CHIEFS:
        if _has(by_workload, workload, name):
            spread = by_workload[workload].spread(name, lambda r: r.cpu_ms("chief"))
            reached = _verdict(spread.median <= bound)
            what = f"CPU ms per step of the chief, {name}"
            yield [workload, what, str(spread), f"at most {bound:g}", reached]


def _loss(by_workload: Mapping[str, Measured]) -> Iterator[list[str]]:
    workload, name, other, bound = LOSS
    if _has(by_workload, workload, name, other):
        measured = by_workload[workload]
        kinds = {"loss": measured.loss, "training loss": measured.training_loss}
        for kind, of in kinds.items():
            mine, theirs = of(name), of(other)
            if mine is None or theirs is None:
                continue
            ratio = mine / theirs
            what = f"{kind}, {name} / {other}"
            reached = _verdict(ratio <= bound)
            yield [workload, what, f"{ratio:.3f}", f"at most {bound:g}", reached]


def _growth(by_workload: Mapping[str, Measured]) -> Iterator[list[str]]:
    for name, other in GROWTH:
        if _has(by_workload, MAIN, name, other) and _has(
            by_workload, LARGE, name, other
        ):
            small = by_workload[MAIN].ratio(name, other, rate)
            large = by_workload[LARGE].ratio(name, other, rate)
            yield [
                LARGE,
                f"{_RATE}, {name} / {other}",
                str(large),
                f"at least {small.median:.2f}, as with 2 workers",
                _verdict(large.median >= small.median),
            ]


def _has(by_workload: Mapping[str, Measured], workload: str, *names: str) -> bool:
    measured = by_workload.get(workload)
    turns = measured.rounds if measured else []
    return set(names) <= {each.contender for each in turns}


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"
