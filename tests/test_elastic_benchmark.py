"""What benchmarks/elastic.py computes from the steps that were reported."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def elastic(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("elastic")


def reported(*rates, late=0.0, seconds=10.0):
    """Samples of phases with these rates; each change is seen late."""
    samples, steps = [], 0.0
    for tenth in range(int(10 * seconds * len(rates))):
        phase = int(max(0.0, tenth / 10 - late) // seconds)
        steps += rates[phase] / 10
        samples.append((100.0 + tenth / 10, int(steps)))
    return samples


TIMES = [100.0, 110.0, 120.0, 130.0]


@pytest.mark.parametrize("late", [0.0, 3.0])
def test_the_rate_follows_as_late_as_it_changes(elastic, late):
    found = elastic.judge(reported(20, 80, 40, late=late), TIMES)
    assert found["rates"] == pytest.approx([20, 80, 40], rel=0.1)
    for seconds in found["followed"]:
        # A window may be near what is expected before all of it is.
        assert late - elastic.WINDOW / 2 <= seconds <= late + 0.2


def test_a_rate_that_does_not_follow(elastic):
    found = elastic.judge(reported(20, 50, 20), TIMES)
    assert found["followed"] == [None, None]


def test_when_a_server_that_comes_late_begins(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    late_server = importlib.import_module("late_server")
    marker, reports = tmp_path / "join", tmp_path / "progress.jsonl"
    monkeypatch.setenv("LAUNCH_PROGRESS", str(reports))
    assert not late_server.is_time(str(marker))
    marker.touch()
    assert late_server.is_time(str(marker))
    assert not late_server.is_time("20")
    reports.write_text('{"time": 1.0, "step": 20}\n')
    assert late_server.is_time("20")
