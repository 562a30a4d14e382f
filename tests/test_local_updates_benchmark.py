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


@pytest.fixture
def consensus():
    return importlib.import_module("consensus")


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


def test_the_target_is_reached_after_the_epoch_that_was_validated(report):
    epochs = [(10.0, None), (5.0, 0.94), (4.0, None), (3.0, 0.951), (2.0, 0.94)]
    found = run("mean_100", 0, *epochs)
    assert report.seconds_to_target(found) == 22.0
    assert report.last_accuracy(found) == 0.94
    assert report.seconds_to_target(run("mean_100", 0, (10.0, 0.94))) is None


def test_ratios_are_those_of_the_same_seed(report):
    done = {
        "runs": [
            run("synchronous", 0, (8.0, 0.96), megabytes=100.0),
            run("synchronous", 1, (2.0, 0.96), megabytes=300.0),
            run("diloco_100", 1, (1.0, 0.96), megabytes=2.0),
            run("diloco_100", 7, (9.0, 0.96), megabytes=50.0),
        ]
    }
    assert report.fewer_bytes(done, "diloco_100") == 150.0
    text = report.targets(done)
    assert "open: 1 of 5 seeds" in text
    assert "| 0.50 | < 1 | reached |" in text


def test_a_run_that_never_gets_there_is_not_left_out(report):
    runs = [run("synchronous", i, (9.0, 0.96)) for i in range(2)]
    runs += [run("diloco_100", 0, (1.0, 0.96)), run("diloco_100", 1, (1.0, 0.94))]
    assert "| inf | < 1 | missed |" in report.targets({"runs": runs})


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((-0.01, 0.01, 0.0, 0.002, -0.002), "reached"),
        ((-0.01, -0.011, -0.01, -0.009, -0.01), "missed"),
    ],
)
def test_less_accurate_is_what_an_interval_shows(report, differences, verdict):
    runs = [run("synchronous", i, (1.0, 0.96)) for i in range(5)]
    runs += [run("diloco_100", i, (1.0, 0.96 + d)) for i, d in enumerate(differences)]
    (line,) = [
        x for x in report.targets({"runs": runs}).splitlines() if "interval" in x
    ]
    assert line.endswith(f"| {verdict} |")


def test_gossip_shrinks_the_distance_as_the_spectral_gap_says(consensus):
    topology = consensus.mixing.ring(16)
    fitted = consensus.fitted_factor(consensus.mixed(topology))
    assert fitted == pytest.approx(topology.second_eigenvalue, rel=1e-4)
    halves = [0.5**i for i in range(12)]
    assert consensus.fitted_factor_of_workers(halves) == pytest.approx(0.5)


def test_real_workers_did_as_well(report, consensus):
    import json

    found = json.loads(report.MEASURED.read_text())["consensus"]
    for name, distances in found["real"].items():
        predicted = getattr(consensus.mixing, name)(4).second_eigenvalue
        fitted = consensus.fitted_factor_of_workers(distances)
        assert fitted == pytest.approx(predicted, rel=0.01)
    assert len(found["real"]) == 3


def test_the_page_has_what_was_measured(report):
    assert report.main(["--check"]) == 0
