"""What benchmarks share: turns, spreads, paired ratios, and what numbers depend on.

Contenders take turns, so that other load affects all of them alike, and ratios are of
turns that followed each other.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
# What a benchmark without parts records.
WHOLE = "all"


@dataclass(frozen=True)
class Spread:
    """The median, minimum and maximum of some numbers.

    >>> print(Spread.of([3.0, 1.0, 2.0]))
    2.00 (1.00 to 3.00)
    >>> print(f"{Spread.of([1500.0]):,.0f}")
    1,500 (1,500 to 1,500)
    """

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Spread":
        """Returns the spread of at least one number."""
        numbers = list(numbers)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    @classmethod
    def of_ratios(cls, ours: Iterable[float], theirs: Iterable[float]) -> "Spread":
        """Returns the spread of the ratios of turns that followed each other.

        Raises:
            ValueError: If one has more turns than the other.
        """
        return cls.of(a / b for a, b in zip(ours, theirs, strict=True))

    @property
    def errors(self) -> tuple[float, float]:
        """How far it reaches below and above its median, as matplotlib draws it."""
        return self.median - self.least, self.greatest - self.median

    def __format__(self, form: str) -> str:
        form = form or ".2f"
        return f"{self.median:{form}} ({self.least:{form}} to {self.greatest:{form}})"

    def __str__(self) -> str:
        return format(self)


def in_turn(contenders: Sequence[T], index: int) -> list[T]:
    """Returns the order of a turn: each turn begins with another contender.

    >>> in_turn("abc", 1)
    ['b', 'c', 'a']
    """
    first = index % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def unique(names: Iterable[T]) -> list[T]:
    """Returns the names in order of their first appearance, each once."""
    return list(dict.fromkeys(names))


def environment(*packages: str) -> dict[str, Any]:
    """Returns what numbers depend on: Python, the packages' versions, and the cores."""
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "cores": os.cpu_count(),
    }


def command() -> str:
    """Returns the command of this process, without the files that it writes."""
    program, *arguments = sys.argv
    kept = [each for each in arguments if not each.startswith("--json")]
    return " ".join(["python", f"benchmarks/{Path(program).name}", *kept])


def kept(path: str | None) -> dict[str, Any]:
    """Returns what an interrupted benchmark has written; empty if that is nothing."""
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


def keep(
    path: str | None,
    found: dict[str, Any],
    parts: Iterable[str] = (WHOLE,),
    indent: int | None = 1,
) -> None:
    """Writes what was measured, if there is a file for it.

    Args:
        path: The file, or None.
        found: All that it is to hold.
        parts: Those measured now, by this commit; the file keeps when others were.
        indent: As `json.dumps` has it.
    """
    if path:
        recorded = kept(path).get("recorded", {}) | dict.fromkeys(parts, _commit())
        text = json.dumps({**found, "recorded": recorded}, indent=indent)
        Path(path).write_text(text + "\n")


def _commit() -> list[str]:
    """Returns the commit checked out, with a + if files were changed since, and the date."""
    name = _git("rev-parse", "--short=7", "HEAD").strip()
    changed = _git("status", "--porcelain", "--", ":/tfdist", ":/launch")
    return [name + "+" * bool(changed), f"{datetime.date.today()}"]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
