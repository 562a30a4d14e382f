"""Queries of the results of all_reduce.py: medians, and ratios of paired repeats."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

TENSORFLOWS = ("RING", "AUTO", "ReductionToOneDevice", "HierarchicalCopyAllReduce")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Results:
    """The rows of the part `reduce`.

    Args:
        measured: The measurements, as dictionaries.
    """

    def __init__(self, measured: Sequence[dict[str, Any]]) -> None:
        self._of: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for each in sorted(measured, key=lambda each: each["repeat"]):
            if each["part"] == "reduce":
                self._of.setdefault(_key(**each), []).append(each)
        self.hosts, self.rates, self.rows, self.sizes = (
            list(dict.fromkeys(key[i] for key in self._of)) for i in range(4)
        )
        self.most_rounds = max((key[4] for key in self._of), default=1)

    def has(self, **point: Any) -> bool:
        """Whether a point (`hosts`, `rate`, `row`, `size`, `rounds`) was measured."""
        return _key(**point) in self._of

    def seconds(self, **point: Any) -> float:
        """The median of a point's seconds."""
        return statistics.median(each["seconds"] for each in self._of[_key(**point)])

    def over_limit(self, **point: Any) -> float:
        """The median of the seconds over the least time for the least bytes."""
        least = least_bytes(point["hosts"], point["size"])
        return self.seconds(**point) / (least / bandwidth(point["rate"]))

    def bytes_over_limit(self, **point: Any) -> float:
        """The median of the busiest link's bytes over the lower bound."""
        moved = statistics.median(each["bytes"] for each in self._of[_key(**point)])
        return moved / least_bytes(point["hosts"], point["size"])

    def ratio(self, row: str, to: str, **point: Any) -> float:
        """The median ratio of two rows' seconds in the same repeat."""
        pairs = zip(
            self._of[_key(row=row, **point)],
            self._of[_key(row=to, **point)],
            strict=True,
        )
        return statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)

    def best_of_tensorflow(self, **point: Any) -> str | None:
        """The name of the fastest of TensorFlow's rows; None if there is none."""
        rows = [row for row in TENSORFLOWS if self.has(row=row, **point)]
        return min(rows, key=lambda row: self.seconds(row=row, **point), default=None)


def bandwidth(rate: str) -> float:
    """Bytes per second of a rate in the notation of `tc`."""
    unit = next(each for each in UNITS if rate.endswith(each))
    return float(rate.removesuffix(unit)) * UNITS[unit] / 8


def least_bytes(hosts: int, size: int) -> float:
    """The lower bound on the bytes of the busiest link of an all-reduce."""
    return 2 * (hosts - 1) / hosts * size


def _key(
    *, hosts: int, rate: str, row: str, size: int, rounds: int = 1, **_: Any
) -> tuple[Any, ...]:
    return hosts, rate, row, size, rounds


class Overlap:
    """The rows of the part `overlap`.

    Args:
        done: All measurements.
    """

    def __init__(self, done: dict[str, Any]) -> None:
        self.model = done["overlap"]
        self._of: dict[tuple[str, bool], list[float]] = {}
        for each in sorted(done["measured"], key=lambda each: each["repeat"]):
            if each["part"] == "overlap":
                self.hosts, self.rate = each["hosts"], each["rate"]
                key = (each["row"], bool(each["compute"]))
                self._of.setdefault(key, []).append(each["seconds"])
        self.rows = list(dict.fromkeys(row for row, _ in self._of))

    def seconds(self, row: str) -> float:
        """The median of a step."""
        return statistics.median(self._of[row, True])

    def exchange(self, row: str) -> float | None:
        """The median step without computation; None if nothing is exchanged."""
        found = self._of.get((row, False))
        return statistics.median(found) if found else None

    def ratio(self, row: str, to: str) -> float:
        """The median ratio of two rows' steps in the same repeat."""
        pairs = zip(self._of[row, True], self._of[to, True], strict=True)
        return statistics.median(a / b for a, b in pairs)

    @property
    def bucket_bytes(self) -> int:
        """The default size of our buckets, in whole layers."""
        layer = self.model["layer_bytes"]
        return layer * math.ceil(self.model["bucket_bytes"] / layer)

    @property
    def one_bucket(self) -> float:
        """The least time for the bytes of one bucket, in seconds."""
        return least_bytes(self.hosts, self.bucket_bytes) / bandwidth(self.rate)
