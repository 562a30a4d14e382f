"""The sweep of bounds: its gradient, its order of events, and its table."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("staleness_sweep")


def images(count, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=count)
    x = random.normal(0.1, 0.1, size=(count, 784)).astype("float32")
    x[np.arange(count), labels] += 2.0
    return x, labels


def test_the_gradient_is_that_of_the_loss(sweep):
    weights = [each.astype("float64") for each in sweep.initial(0)]
    x, y = images(4)

    def loss():
        _, logits = sweep.forward(weights, x)
        return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), y])

    slopes = sweep.gradient(weights, x, y)
    for weight, slope in zip(weights, slopes, strict=True):
        place = np.unravel_index(np.abs(slope).argmax(), slope.shape)
        weight[place] += 1e-5
        above = loss()
        weight[place] -= 2e-5
        assert (above - loss()) / 2e-5 == pytest.approx(slope[place], rel=1e-4)
        weight[place] += 1e-5


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ("synchronous", 0),
        ("synchronous+1", 0),
        ("0", 0),
        ("2", 2),
        ("asynchronous", 99),
    ],
)
def test_every_policy_learns_and_keeps_its_bound(sweep, policy, most):
    job = sweep.Job(workers=4, slowest=3.0, momentum=0.5, target=0.95, limit=400.0)
    setting = sweep.Setting(policy, 0.1, seed=0)
    training = sweep.Training(job, setting, images(320), images(200, seed=1))
    assert 0 < training.run() < math.inf
    assert training.gate.max_staleness <= most
    again = sweep.Training(job, setting, images(320), images(200, seed=1))
    assert again.run() == training.seconds


def test_a_rate_that_is_too_high_ends_early(sweep):
    job = sweep.Job(workers=4, slowest=1.0, momentum=0.9, target=0.95, limit=40.0)
    setting = sweep.Setting("asynchronous", 50.0, seed=0)
    assert sweep.Training(job, setting, images(320), images(200)).run() == math.inf


def test_the_table_has_medians(sweep):
    found = [
        {"policy": "2", "rate": 0.1, "seed": i, "seconds": each, "staleness": 1.5}
        for i, each in enumerate([3.0, None, 10.0])
    ]
    found += [{**each, "rate": 0.2, "seconds": None} for each in found]
    assert sweep.table(found).splitlines()[2] == "| 2 | 1.5 | 10 | – |"


@pytest.mark.parametrize("name", ["staleness_sweep", "staleness_sweep_slow"])
def test_the_page_shows_what_was_found(sweep, name):
    measured = ROOT / "benchmarks" / "measured" / f"{name}.json"
    page = (ROOT / "docs" / "consistency.md").read_text()
    runs = json.loads(measured.read_text())["runs"]
    assert {each["seed"] for each in runs} == set(range(5))
    for row in sweep.table(runs).splitlines()[2:]:
        assert row.split(" | ", 1)[1] in page
