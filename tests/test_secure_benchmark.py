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


def test_ratios_are_those_within_a_round(report):
    """On a machine that gets slower, the medians of the two alone have the ratio 1."""
    slower = rounds("fit", (90.0, 80.0), (60.0, 30.0), (40.0, 60.0))
    assert report.ratios(slower, "fit") == [0.5, 80 / 90, 1.5]
    line = "| `fit` of the CNN, steps/s | 60 | 60 | 0.89 | 0.50 to 1.50 | ≥ 0.95, missed |\n"
    assert report.row(slower, "fit") == line


def test_more_is_better_but_for_a_time(report):
    assert report.row(rounds("read", (100.0, 81.0)), "read").endswith("| ≥ 0.8 |\n")
    assert "missed" in report.row(rounds("read", (100.0, 79.0)), "read")
    assert report.row(rounds("trip", (1.0, 1.29)), "trip").endswith("| ≤ 1.3 |\n")
    assert "missed" in report.row(rounds("trip", (1.0, 1.31)), "trip")


def test_the_page_has_what_was_measured(report):
    assert report.main(["--check"]) == 0
