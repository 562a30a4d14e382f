"""What the benchmarks of faults and slow workers compute from measurements."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def report():
    return importlib.import_module("chaos_report")


@pytest.fixture
def stragglers():
    return importlib.import_module("stragglers")


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


def test_the_docs_have_what_was_measured(report, stragglers):
    assert report.main(["--check"]) == 0
    measured = json.loads((ROOT / "benchmarks/measured/stragglers.json").read_text())
    page = (ROOT / "docs/parameter-servers.md").read_text()
    assert stragglers.sentence(measured) in " ".join(page.split())


def test_the_docs_say_what_checkpoints_cost():
    cost = importlib.import_module("checkpoint_cost")
    measured = json.loads(
        (ROOT / "benchmarks/measured/checkpoint_cost.json").read_text()
    )
    stretches = measured["stretches"]
    assert all(each["written"] == each["checkpoint"] for each in stretches)
    assert len(cost.ratios(stretches)) >= 5
    page = (ROOT / "docs/recovery.md").read_text()
    assert cost.sentence(measured) in " ".join(page.split())


def test_ratios_are_of_pairs(stragglers):
    epochs = [
        {"repeat": repeat, "slow": slow, "rate": rate}
        for repeat, slow, rate in [(0, True, 9.0), (0, False, 10.0), (1, False, 4.0)]
    ]
    epochs.append({"repeat": 1, "slow": True, "rate": 4.4})
    assert stragglers.ratios(epochs) == pytest.approx([0.9, 1.1])
