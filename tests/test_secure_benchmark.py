"""What the benchmark of TLS computes from measurements."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("secure_report")


def rounds(measure, *pairs):
    return [{measure: {"private": plain, "tls": tls}} for plain, tls in pairs]


def test_more_is_better_but_for_a_time(report):
    assert report.row(rounds("read", (100.0, 81.0)), "read").endswith("| ≥ 0.8 |\n")
    assert "missed" in report.row(rounds("read", (100.0, 79.0)), "read")
    assert report.row(rounds("trip", (1.0, 1.29)), "trip").endswith("| ≤ 1.3 |\n")
    assert "missed" in report.row(rounds("trip", (1.0, 1.31)), "trip")


def test_the_page_has_what_was_measured(report):
    assert report.main(["--check"]) == 0
