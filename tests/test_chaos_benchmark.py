"""What the benchmark of faults computes from measurements."""

import importlib
from pathlib import Path

import pytest

from launch.fault import faults

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def report():
    return importlib.import_module("chaos_report")


def run(report, **values):
    struck = {"kind": "kill", "task": "ps:1", "recovery": 7.0}
    return report.Run(
        **{
            "seed": 3,
            "faults": [{"kind": "kill", "task": "ps:1"}],
            "recovered": [struck],
            "status": 0,
            "reason": "",
            "seconds": 30.0,
            "steps": 203,
            "expected": 200,
            "done_again": 0.5,
            "broken": [],
            **values,
        }
    )


def test_the_section_counts_what_was_lost_and_what_did_not_hold(report):
    runs = [
        run(report),
        run(report, seed=4, steps=198, broken=["no step is lost: 198"]),
    ]
    about = {"tensorflow": "2", "keras": "3", "cores": 2}
    measured = {"environment": about, "runs": [vars(each) for each in runs]}
    text = report.section(measured)
    assert "2 ended with the right weights, 0 with an error" in text
    assert "2 steps were lost" in text
    assert "seed 4: no step is lost: 198" in text


def test_the_docs_have_what_was_measured(report):
    assert report.main(["--check"]) == 0


def test_every_kind_of_fault_is_drawn_and_a_kill_twice_as_often():
    chaos = importlib.import_module("chaos")
    assert sorted(chaos.KINDS) == sorted([*faults.FAULT_KINDS, faults.KILL])
