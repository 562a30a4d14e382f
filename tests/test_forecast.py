"""Forecasts for clusters that nobody has: what limits them, and what a failed ps costs."""

import math
import sys

import pytest

from tfdist import Asynchronous, simulate
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning import forecast_command, forecast_view
from tfdist.planning.forecast import (
    CHIEF_CPU,
    Data,
    Faults,
    cost_of_plan,
    forecast,
    lost_seconds,
    lost_share,
)
from tfdist.planning.plan import Weight
from tfdist.planning.planner import plan_variables
from tfdist.simulation.step_cost import Hosts, StepCost

MEGABYTE = 1_000_000
WEIGHTS = [
    Weight(VariableSpec(f"dense_{i}/kernel", (1000, 250), "float32", 4), slots=("m",))
    for i in range(8)
]
PLAN = plan_variables(WEIGHTS, 4, balance="traffic")
HOSTS = Hosts(cores=4.0, rate=125e6)
DATA = Data(examples=64_000, batch_size=32)


def at(*sizes, step_seconds=0.1, plan=PLAN, hosts=HOSTS, data=DATA):
    cost = cost_of_plan(plan, data, step_seconds=step_seconds)
    return forecast(cost, hosts, sizes, Asynchronous(), data, steps=1600)


def test_bytes_are_those_of_the_plan():
    cost = cost_of_plan(PLAN, DATA, step_seconds=0.1)
    assert cost.pulled == cost.pushed == 8 * MEGABYTE
    assert cost.fullest_ps == pytest.approx(0.25)
    assert cost.chief_cpu == CHIEF_CPU
    assert cost.fed == 0
    fed = Data(batch_size=32, example_bytes=1000.0, from_chief=True)
    assert cost_of_plan(PLAN, fed, step_seconds=0.1).fed == 32_000
    measured = StepCost(
        worker_cpu=0.2, chief_cpu=0.003, pulled=1.0, steps_per_message=7
    )
    found = cost_of_plan(PLAN, DATA, measured=measured)
    assert (found.worker_cpu, found.chief_cpu) == (0.2, 0.003)
    assert (found.pulled, found.steps_per_message) == (8 * MEGABYTE, 7)


def test_few_workers_are_limited_by_their_steps_and_many_by_what_they_share():
    one, few, many = at(1, 4, 200)
    assert one.speedup == pytest.approx(1, rel=0.1)
    assert one.epoch_seconds == pytest.approx(2000 / one.steps_per_second)
    # 0.13 s of moving, and 0.1 s of computing.
    assert few.bound == "the links"
    assert at(4, step_seconds=0.2)[0].bound == "the steps themselves"
    # 2 MB of each step through the link of one ps, at 125 MB/s.
    assert "fullest ps's link" in many.bound
    assert many.steps_per_second == pytest.approx(62.5, rel=0.1)
    fast = at(200, hosts=Hosts(cores=4.0, rate=12.5e9))[0]
    assert "chief's interpreter" in fast.bound
    assert fast.steps_per_second == pytest.approx(1 / CHIEF_CPU, rel=0.05)


def test_examples_that_the_chief_sends_are_the_limit():
    data = Data(batch_size=64, example_bytes=150_000.0, from_chief=True)
    (found,) = at(20, data=data)
    assert found.bound == "the chief's link"
    assert found.steps_per_second == pytest.approx(125e6 / 9.6e6, rel=0.1)
    assert found.epoch_seconds is None


def test_a_failed_ps():
    faults = Faults(600.0, 30.0, disk=1e6, mtbf_seconds=1e6)
    # 4 MB on each, with a slot.
    assert lost_seconds(PLAN, faults) == pytest.approx(30 + 4 + 300)
    assert lost_share(PLAN, faults) == pytest.approx(334 / (334 + 250_000))
    assert lost_share(PLAN, Faults()) == 0


@pytest.mark.parametrize(
    "given", [{}, {"measured": StepCost(0.1), "step_seconds": 1.0}]
)
def test_one_source_for_what_a_step_takes(given):
    with pytest.raises(ValueError, match=r"either a file .* received (neither|both)"):
        cost_of_plan(PLAN, DATA, **given)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_out_of_range(seconds):
    with pytest.raises(ValueError, match="step_seconds is above 0 seconds"):
        cost_of_plan(PLAN, DATA, step_seconds=seconds)


def test_the_table_says_what_helps():
    text = forecast_view.table(at(1, 200))
    assert "more workers, or faster links" in text
    assert "more ps, or faster links" in text
    assert "min" in text


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "a_model.py").write_text(
        "import keras\n"
        "def build():\n"
        "    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1000)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lambda *arguments: simulate.main(["tfdist.simulate", *arguments])


@pytest.mark.slow
def test_the_command(command, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    status = command(
        "--workers=1,50",
        "--ps=2",
        "--step_seconds=0.05",
        "--steps=400",
        "--examples=1000",
        "--mtbf_days=10",
        "--plot=curve.png",
        "a_model.py:build",
    )
    told = capsys.readouterr().out
    assert status == 0
    assert "0.04 MB from the ps" in told
    assert "assumed: 2 ms of the chief per step" in told
    assert "a failed ps costs 5.5 min" in told
    assert "of the time" in told
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one function"),
        (("a_model.py:build",), "--workers is one number of workers"),
        (("--workers=1,x", "a_model.py:build"), "received '1,x'"),
        (("--workers=0", "a_model.py:build"), "received '0'"),
        (("--workers=1,100000000", "a_model.py:build"), "from 1 to 100,000 workers"),
        (("--workers=2", "a_model.py:build"), "give the number of ps"),
        (("--workers=2", "--ps=1", "a_model.py:build"), "either --measured"),
        (
            ("--workers=2", "--ps=1", "--step_seconds=1", "--measured=x", "a:b"),
            "computes; received both",
        ),
        (
            ("--workers=2", "--ps=1", "--step_seconds=1", "--disk=nan", "a:b"),
            "--disk is a finite number; received nan",
        ),
        (("--workers=2", "--ps=1", "--measured=none.json", "a:b"), "none.json"),
        (("--workers=2", "--ps=1", "--step_seconds=1", "b.py:f"), "no file b.py"),
        (("--workers=2", "--ps=0", "a:b"), "--ps=0"),
        (("none.json",), "none.json"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(command, capsys, arguments, message):
    assert command(*arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "python -m tfdist.simulate" in told


def test_help(capsys):
    assert forecast_command.main(["tfdist.simulate", "--help"]) == 0
    assert "--step_seconds" in capsys.readouterr().out
