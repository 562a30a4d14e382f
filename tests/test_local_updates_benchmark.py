"""What the benchmark of local updates runs, and what it computes from its runs."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def report():
    return importlib.import_module("local_updates_report")


def run(config, seed, *epochs, megabytes=1.0):
    return {
        "config": config,
        "seed": seed,
        "load": 1.0,
        "received": [megabytes * 1e6] * 4,
        "epochs": [{"seconds": s, "received": 1e6, "accuracy": a} for s, a in epochs],
    }


def test_configurations_take_turns_and_few_get_all_seeds():
    schedule = importlib.import_module("local_updates").schedule
    assert schedule(["synchronous", "mean_10", "diloco_100"], 2, 1) == [
        ("synchronous", 0),
        ("mean_10", 0),
        ("diloco_100", 0),
        ("diloco_100", 1),
        ("synchronous", 1),
    ]


def test_the_interval_is_students(report):
    """The ends are those of scipy.stats.ttest_1samp(...).confidence_interval()."""
    low, high = report.interval([0.01, -0.002, 0.004, 0.003, 0.0])
    assert low == pytest.approx(-0.0026900, abs=1e-6)
    assert high == pytest.approx(0.0086900, abs=1e-6)
    assert report.interval([0.01]) is None


def test_a_run_that_never_gets_there_is_not_left_out(report):
    runs = [run("synchronous", i, (9.0, 0.96)) for i in range(2)]
    runs += [run("diloco_100", 0, (1.0, 0.96)), run("diloco_100", 1, (1.0, 0.94))]
    assert "| inf | < 1 | missed |" in report.targets({"runs": runs})


def test_the_page_has_what_was_measured(report):
    assert report.main(["--check"]) == 0
