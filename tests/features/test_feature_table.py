"""The table of features is the one that the tests make."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .. import feature_table
from ..support.raising import raises

pytestmark = pytest.mark.parameter_server
TESTS = Path(__file__).resolve().parent.parent


def test_documents_hold_the_table():
    command = [sys.executable, str(TESTS / "feature_table.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_row_is_a_test(request: pytest.FixtureRequest):
    page = (TESTS.parent / "docs" / "features.md").read_text().splitlines()
    tests = {row.feature: row.test for p in feature_table.parts() for row in p.rows}
    for item in request.session.items:
        for marker in item.iter_markers("feature"):
            feature = marker.args[0]
            assert any(
                r == f"- {feature}" or r.startswith(f"| {feature} |") for r in page
            )
            function, *params = item.name.split("[")
            test, *case = tests[feature].partition("::")[2].removesuffix("]").split("[")
            assert test == function
            if case:
                # A test may have other parameters than the row's own.
                assert re.match(rf"{re.escape(case[0])}(-|\])", params[0])


ROWS = TESTS / "feature_programs" / "rows.py"
STATUSES = {
    "The same everywhere": ["no: for a reason"] * 5,
    "Not so": ["no: it races", "no: it races", "yes", "yes", "yes"],
    "Each its own": ["yes"] * 3 + ["approximately: as the page says", "yes"],
    "Of ps": ["yes"] * 3 + ["–", "–"],
    "What steps write": ["yes", "yes", "–", "–", "–"],
    "In a list": ["yes"] * 4 + ["–"],
}


def test_each_strategy_has_its_status(tmp_path):
    whole = ROWS.read_text()
    (tmp_path / "rows.py").write_text(whole.split('@pytest.mark.feature("Nothing')[0])
    part = feature_table.read(tmp_path / "rows.py")
    found = {
        row.feature: [str(cell) for cell in row.cells.values()] for row in part.rows
    }
    assert found == STATUSES
    assert [row.markdown for row in part.rows][:4] == [
        "| The same everywhere | no: for a reason | no: for a reason |\n",
        "| Not so | asynchronous and bounded: no (it races); in rounds: yes | yes |\n",
        "| Each its own | yes | multi-worker: approximately (as the page says); "
        "ring: yes |\n",
        "- Of ps\n",
    ]
    with raises(ValueError, "test_untold"):
        feature_table.read(ROWS)
