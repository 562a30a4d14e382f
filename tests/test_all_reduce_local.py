"""The all-reduce benchmark in one process runs, and the page shows its figures."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .deadline import PROGRAM_DEADLINE

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("all_reduce_local")


@pytest.fixture
def measured(benchmark):
    return benchmark.pages.measured("all_reduce_local")


def test_the_page_shows_what_was_measured(benchmark, measured):
    page = benchmark.pages.DOCS / "algorithms.md"
    assert (
        benchmark.pages.publish(
            page, {"local": benchmark.section(measured)}, is_check=True
        )
        == 0
    )


def test_the_figures_are_of_all_cases_and_as_the_page_says(benchmark, measured):
    rows = benchmark.rows_of(measured)
    assert [row.case for row in rows] == [
        benchmark.Case(devices, tensors, size)
        for devices in (4, 8)
        for tensors in (1, 60)
        for size in (4_000, 64_000, 1_000_000, 10_000_000, 100_000_000)
    ]
    assert max(row.default for row in rows) <= 1.05
    assert max(row.ring for row in rows) < 1


@pytest.mark.slow
def test_a_case_is_measured(benchmark):
    case = json.dumps({"devices": 4, "tensors": 2, "size": 800})
    done = subprocess.run(
        [sys.executable, benchmark.__file__, f"--case={case}", "--seconds=0"],
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["rounds"] == benchmark.LEAST_ROUNDS
    assert set(row["milliseconds"]) == {*benchmark.OURS, *benchmark.THEIRS}
    assert all(row["milliseconds"].values())
