"""What all_reduce.py measured, to ask for: medians, and ratios of what ran in turns."""

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
        """The median of the seconds, in those that the least bytes take alone."""
        least = least_bytes(point["hosts"], point["size"])
        return self.seconds(**point) / (least / bandwidth(point["rate"]))

    def bytes_over_limit(self, **point: Any) -> float:
        """The median of the busiest link's bytes, in the least possible."""
        moved = statistics.median(each["bytes"] for each in self._of[_key(**point)])
        return moved / least_bytes(point["hosts"], point["size"])

    def ratio(self, row: str, to: str, **point: Any) -> float:
        """The median of the ratios of two rows' seconds, of the same repeat."""
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
    """Bytes a second of a rate as `tc` says it."""
    unit = next(each for each in UNITS if rate.endswith(each))
    return float(rate.removesuffix(unit)) * UNITS[unit] / 8


def least_bytes(hosts: int, size: int) -> float:
    """The least that the busiest link of an all-reduce can carry, in bytes."""
    return 2 * (hosts - 1) / hosts * size


def _key(
    *, hosts: int, rate: str, row: str, size: int, rounds: int = 1, **_: Any
) -> tuple[Any, ...]:
    return hosts, rate, row, size, rounds


class Overlap:
    """The rows of the part `overlap`.

    Args:
        done: All that was measured.
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
        """The median of a step that computes nothing; None if nothing is exchanged."""
        found = self._of.get((row, False))
        return statistics.median(found) if found else None

    def ratio(self, row: str, to: str) -> float:
        """The median of the ratios of two rows' steps, of the same repeat."""
        pairs = zip(self._of[row, True], self._of[to, True], strict=True)
        return statistics.median(a / b for a, b in pairs)

    @property
    def bucket_bytes(self) -> int:
        """The size of our buckets, by default: of as many layers as it takes."""
        layer = self.model["layer_bytes"]
        return layer * math.ceil(self.model["bucket_bytes"] / layer)

    @property
    def one_bucket(self) -> float:
        """Seconds that the bytes of one bucket take alone, at least."""
        return least_bytes(self.hosts, self.bucket_bytes) / bandwidth(self.rate)
