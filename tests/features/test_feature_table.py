"""The table of features is the one that the tests make."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parameter_server

TESTS = Path(__file__).resolve().parent.parent


def test_documents_hold_the_table():
    command = [sys.executable, str(TESTS / "feature_table.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_row_is_a_test(request: pytest.FixtureRequest):
    page = (TESTS.parent / "docs" / "features.md").read_text()
    for item in request.session.items:
        for marker in item.iter_markers("feature"):
            row = next(
                r for r in page.splitlines() if r.startswith(f"| {marker.args[0]} |")
            )
            function, *params = item.name.split("[")
            assert f"`{function}" in row
            if f"[`{function}[" in row:
                assert f"`{function}[{params[0]}`" in row
