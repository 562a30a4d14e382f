"""What each run of the matrix gave: the tracked file `results.json`."""

import json
from pathlib import Path
from typing import Any

from .plan import Versions, as_numbers

PATH = Path(__file__).with_name("results.json")
_KEY = ("asked", "tests")


def load(path: Path = PATH) -> list[dict[str, Any]]:
    """Returns the recorded runs, the oldest versions first."""
    return json.loads(path.read_text()) if path.exists() else []


def record(run: dict[str, Any], path: Path = PATH) -> None:
    """Adds a run, in place of an earlier one of the same versions and tests."""
    others = [each for each in load(path) if any(each[k] != run[k] for k in _KEY)]
    runs = sorted([*others, run], key=_order)
    path.write_text(json.dumps(runs, indent=2) + "\n")


def _order(run: dict[str, Any]) -> tuple[Any, ...]:
    names = ("tensorflow", "python", "keras")
    return tuple(as_numbers(run["found"][name]) for name in names) + (run["tests"],)


def entry(
    versions: Versions,
    found: dict[str, str],
    tests: str,
    commit: str,
    date: str,
    outcome: dict[str, Any],
) -> dict[str, Any]:
    """Returns a run as the file has it."""
    return {
        "asked": str(versions),
        "tests": tests,
        "found": found,
        "commit": commit,
        "date": date,
        **outcome,
    }
