"""The gate, and the parts, which are the folders of tests.

The gate is what `make test` and CI run: minutes, in any order, under any load. It has every
test that needs neither a cluster, nor Python programs, nor an engine, unless it is marked
`not_in_gate`, and of the others those that are marked `in_gate`: few, and each proves a
capability on real processes. Of a room of tfdist.research, that is one.

`make test-all` runs all parts, and `make test-all PART=recovery` one of them. A part leaves
out the tests marked `thorough`, and of a test marked `in_part` all cases but those that the
mark names. `make sweeps` runs all of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

GATE = "gate"

TESTS = Path(__file__).parent
PARTS = sorted({path.parent.name for path in TESTS.glob("*/test_*.py")})
"""The folders of tests: most are named for the package whose behaviour they prove."""

MARKERS = (
    "gate: what `make test` runs; see tests/parts.py",
    "in_gate(*cases): the gate has this test, or these cases of it, though it needs more",
    "not_in_gate: takes seconds, and says what a shorter test of the gate says or few "
    "changes can break: strings through every shell, pictures, figures of a page, data sets",
    "in_part(*cases): a sweep, of which the parts run these cases. Each other case differs "
    "from one of them in its data alone, or takes minutes on a busy machine",
)
NEEDS_MORE = {"cluster", "slow", "namespaces", "engine", "thorough"}
"""The markers of tests that the gate has only if they are marked `in_gate`."""

BY_CASE_ALONE = NEEDS_MORE - {"cluster", "slow"}
"""The markers of tests that the gate has only if `in_gate` names their cases."""


def is_in_gate(case: str, markers: Mapping[str, Sequence[Any]]) -> bool:
    """Returns True if the gate has a test.

    Args:
        case: What its name has in brackets.
        markers: The arguments of its markers, by their names.
    """
    if "not_in_gate" in markers:
        return False
    if not NEEDS_MORE.intersection(markers):
        return True
    if "in_gate" not in markers:
        return False
    cases = markers["in_gate"]
    return case in cases if cases else not BY_CASE_ALONE.intersection(markers)


def case_of(item: pytest.Item) -> str:
    return item.name.partition("[")[2].removesuffix("]")


def mark_gate(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Marks the tests of the gate, and returns the others."""
    others = []
    for item in items:
        # The mark of a test comes before that of its file.
        marks = [*item.iter_markers()][::-1]
        if is_in_gate(case_of(item), {mark.name: mark.args for mark in marks}):
            item.add_marker(GATE)
        else:
            others.append(item)
    return others


def mark_sweeps(items: Sequence[pytest.Item], some: bool) -> None:
    """Marks the cases that a part leaves out as thorough.

    Args:
        items: The tests.
        some: Whether some cases of them were chosen.

    Raises:
        pytest.UsageError: If a case that a mark names does not exist.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        for mark in item.iter_markers():
            if mark.name in ("in_part", "in_gate"):
                test = item.nodeid.partition("[")[0]
                missing.setdefault(test, set(mark.args)).discard(case_of(item))
            if mark.name == "in_part" and case_of(item) not in mark.args:
                item.add_marker("thorough")
    wrong = {test: cases for test, cases in missing.items() if cases}
    if wrong and not some:
        raise pytest.UsageError(f"a mark names cases that do not exist: {wrong}")
