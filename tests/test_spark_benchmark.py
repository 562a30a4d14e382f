"""The benchmark of Spark MLlib: its data, its arithmetic, and its table in the page."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

# The examples define flags of the same names.
pytestmark = pytest.mark.own_process

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.mark.parametrize("name", ["linear", "logistic"])
def test_the_gradient_is_that_of_the_loss_and_vanishes_at_the_least(benchmark, name):
    regression = benchmark("peer_programs.regression")
    data = regression.make_data(name, rows=500, columns=4)
    w = np.array([0.3, -0.2, 0.1, 0.5])
    slopes = [
        (regression.loss(name, w + each, data) - regression.loss(name, w - each, data))
        / 2e-5
        for each in 1e-5 * np.eye(4)
    ]
    np.testing.assert_allclose(regression.gradient(name, w, data), slopes, rtol=1e-4)
    least = regression.least_loss(name, data)
    for _ in range(2000):
        w = w - 0.1 * regression.gradient(name, w, data)
    assert regression.loss(name, w, data) == pytest.approx(least, rel=1e-6)


def turn(how, repeat, seconds, **changes):
    values = {"per_pass": seconds / 2, "passes": 2, "to_target": seconds}
    key = {"how": how, "regression": "linear", "repeat": repeat}
    return {**values, **key, **changes}


def test_a_turn_counts_the_passes_to_the_loss(benchmark):
    spark_mllib = benchmark("spark_mllib")
    answer = {"seconds": [1.0, 2.0, 4.0], "losses": [0.9, 0.5, 0.4]}
    assert spark_mllib.turn(answer, 0.5) == {
        "per_pass": pytest.approx(7 / 3),
        "passes": 2,
        "to_target": 3.0,
    }
    assert spark_mllib.turn(answer, 0.1)["to_target"] is None


def test_the_page_shows_what_was_measured(benchmark):
    spark_mllib = benchmark("spark_mllib")
    measured = json.loads(spark_mllib.MEASURED.read_text())
    text = spark_mllib.PAGE.read_text()
    assert spark_mllib.page(text, measured) == text
    assert len({each["repeat"] for each in measured["turns"]}) >= 5


def test_a_picture_is_of_shares_and_rates(benchmark, tmp_path):
    pictures = benchmark("consistency_pictures")
    event = benchmark("linear_predictor").Event
    events = pictures.from_zero(
        [
            event(0, "compute", 5.0, 6.0),
            event(1, "wait", 5.0, 5.5),
            event(1, "compute", 5.5, 6.0),
            event(0, "write", 6.0, 6.0),
        ]
    )
    assert events[0].begin == 0
    assert pictures.summary(events) == (0.25, 1.0)
    pictures.draw(dict.fromkeys(pictures.PANELS, events), str(tmp_path / "waits.png"))
    assert (tmp_path / "waits.png").stat().st_size > 1000


def test_a_timeline_is_drawn_where_most_happens(benchmark, tmp_path):
    pictures = benchmark("consistency_pictures")
    steps = [
        {
            "name": "pull",
            "ph": "X",
            "pid": each % 2,
            "ts": 1e6 * (each > 30),
            "dur": 9.0,
        }
        for each in range(100)
    ]
    noise = [{"name": "process_name", "ph": "M", "pid": 0}]
    text = "[" + "".join(f"{json.dumps(each)},\n" for each in noise + steps)
    found = pictures.steps_of(text)
    assert found == steps == pictures.steps_of(json.dumps(noise + steps))
    assert pictures.busiest(found, 1e3) == 1e6
    pictures.draw_timelines({"bounded": found}, str(tmp_path / "timeline.png"))
    assert (tmp_path / "timeline.png").stat().st_size > 1000
