"""The performance targets between hosts, and whether the measurements reach them."""

from collections.abc import Iterator
from dataclasses import dataclass

from all_reduce_results import Overlap, Results

LARGE = 25_000_000
UNSHAPED = "none"
OURS = ("choice", "ring")


@dataclass(frozen=True)
class Target:
    """A bound, and the worst measurement.

    Attributes:
        what: The quantity that is bounded.
        bound: The bound, a ratio.
        worst: The worst measurement.
        where: Where it was measured.
        least: Whether it is a lower bound.
    """

    what: str
    bound: float
    worst: float
    where: str
    least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the worst is within the bound, rounded to the digits of the bound."""
        if self.least:
            return round(self.worst, 2) >= self.bound
        return round(self.worst, 2) <= self.bound


def targets(results: Results) -> Iterator[Target]:
    """Yields the targets of the part `reduce`."""
    large = [size for size in results.sizes if size >= LARGE]
    shaped = [rate for rate in results.rates if rate != UNSHAPED]

    def worst(what: str, bound: float, found: dict[str, float]) -> Iterator[Target]:
        if found:
            where = max(found, key=lambda each: found[each])
            yield Target(what, bound, found[where], where)

    yield from worst(
        "bytes of the busiest link, 25 MB and more / limit: the ring; choice, on "
        "shaped links",
        1.01,
        {
            f"{row}, {_at(hosts, rate, size)}": results.bytes_over_limit(
                row=row, hosts=hosts, rate=rate, size=size
            )
            for row in OURS
            for hosts in results.hosts
            for rate in results.rates
            for size in large
            # It loads one link more than others where links are not what is waited for.
            if (row, rate) != ("choice", UNSHAPED)
        },
    )
    yield from worst(
        "the same as bfloat16",
        0.56,
        {
            _at(hosts, rate, size): results.bytes_over_limit(
                row="ring_bfloat16", hosts=hosts, rate=rate, size=size
            )
            for hosts in results.hosts
            for rate in results.rates
            for size in large
        },
    )
    for rate, bound in (("200mbit", 1.08), ("1gbit", 1.18)):
        yield from worst(
            f"seconds at {rate}, 25 MB and more / limit",
            bound,
            {
                f"{row}, {_at(hosts, rate, size)}": results.over_limit(
                    row=row, hosts=hosts, rate=rate, size=size
                )
                for row in OURS
                for hosts in results.hosts
                for size in large
                if rate in shaped
            },
        )
    unshaped = {
        _at(hosts, UNSHAPED, size): results.ratio(
            "RING", "choice", hosts=hosts, rate=UNSHAPED, size=size
        )
        for hosts in results.hosts
        for size in large[-1:]
        if UNSHAPED in results.rates
    }
    if unshaped:
        where = min(unshaped, key=lambda each: unshaped[each])
        what = "TensorFlow's RING / choice, links not shaped, the largest"
        yield Target(what, 1.7, unshaped[where], where, least=True)
    yield from worst(
        "choice / the fastest of TensorFlow's own, one call per round",
        1.0,
        {
            _at(hosts, rate, size): results.ratio(
                "choice", best, hosts=hosts, rate=rate, size=size
            )
            for hosts in results.hosts
            for rate in results.rates
            for size in results.sizes
            if (best := results.best_of_tensorflow(hosts=hosts, rate=rate, size=size))
        },
    )


def overlap_targets(overlap: Overlap) -> Iterator[Target]:
    """Yields the targets of the part `overlap`."""
    ours = "ring, default buckets"
    compute = overlap.seconds("compute alone, in one graph")
    exchange = overlap.exchange("ring, one bucket") or 0.0
    yield Target(
        "a step / (the longer of compute and exchange, and one bucket)",
        1.05,
        overlap.seconds(ours) / (max(compute, exchange) + overlap.one_bucket),
        ours,
    )
    default = next(row for row in overlap.rows if "one pack" in row)
    yield Target(
        "TensorFlow's default (one pack) / ours",
        1.7,
        overlap.ratio(default, ours),
        ours,
        least=True,
    )
    tuned = [row for row in overlap.rows if "bytes_per_pack" in row]
    best = min(tuned, key=overlap.seconds)
    yield Target(
        "ours / TensorFlow's RING with the best bytes_per_pack",
        1.0,
        overlap.ratio(ours, best),
        best,
    )


def _at(hosts: int, rate: str, size: int) -> str:
    speed = "not shaped" if rate == UNSHAPED else rate
    return f"{hosts} hosts, {speed}, {size_name(size)}"


def size_name(size: int) -> str:
    """Formats a size with its unit."""
    return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1e3:g} KB"
