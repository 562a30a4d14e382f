"""Predicted curves: what a simulation has made, another one finds again."""

import math
from dataclasses import replace

import pytest

from tf_config.speedup import Epoch, Run, Speedup
from tfdist import Asynchronous
from tfdist.simulation import command, view
from tfdist.simulation.calibration import (
    LINK_EFFICIENCY,
    SPREAD,
    CalibrationError,
    cost_of,
    hosts_of,
)
from tfdist.simulation.parameter_server import simulate
from tfdist.simulation.prediction import predict
from tfdist.simulation.step_cost import Hosts, StepCost

# Each simulates thousands of steps.
pytestmark = pytest.mark.slow

STEPS = 200


def made(cost, hosts, sizes=(1, 2, 4, 8), other=0.0, seed=7):
    """A file as `launch.speedup` writes it, of simulated runs."""
    runs = []
    for workers in sizes:
        left = replace(hosts, share=1 - other / hosts.cores)
        outcome = simulate(
            cost,
            left,
            workers,
            Asynchronous(),
            steps=1200,
            epoch_steps=STEPS,
            seed=seed,
        )
        seconds = STEPS / outcome.steps_per_second
        sent = {
            "ps:0": cost.pulled * cost.fullest_ps * STEPS,
            "ps:1": cost.pulled * (1 - cost.fullest_ps) * STEPS,
            "chief": cost.fed * STEPS,
        }
        pushed = cost.pushed * STEPS
        received = {
            "ps:0": pushed * cost.fullest_ps,
            "ps:1": pushed * (1 - cost.fullest_ps),
        }
        cpu = {"chief": cost.chief_cpu * STEPS, "ps:0": cost.ps_cpu * STEPS}
        cpu |= {
            f"worker:{at}": cost.worker_cpu * STEPS / workers for at in range(workers)
        }
        each = Epoch(
            seconds,
            STEPS,
            STEPS // cost.steps_per_message,
            cpu=cpu,
            sent=sent,
            received=received,
            other_cpu=other * seconds,
        )
        runs.append(
            Run(workers, "asynchronous", 0, 0, 1.0, "asynchronous", (each,) * 3)
        )
    rate = None if math.isinf(hosts.rate) else hosts.rate / LINK_EFFICIENCY
    cores = int(hosts.cores)
    return Speedup(("train.py",), 2, cores, rate, int(hosts.burst), None, tuple(runs))


ON_LINKS = (
    StepCost(
        worker_cpu=0.01,
        ps_cpu=0.006,
        chief_cpu=0.005,
        pulled=1e6,
        pushed=1e6,
        fed=1e5,
        idle=0.004,
        fullest_ps=0.75,
        spread=SPREAD,
    ),
    Hosts(4.0, True, 25e6, 70_000.0),
)
ON_CORES = (
    StepCost(
        worker_cpu=0.03,
        ps_cpu=0.002,
        chief_cpu=0.001,
        idle=0.01,
        steps_per_message=5,
        fullest_ps=0.5,
        spread=SPREAD,
    ),
    Hosts(4.0, True),
)
SEVERAL_CORES = (replace(ON_CORES[0], parallelism=1.7, idle=0.0), ON_CORES[1])


@pytest.mark.parametrize(("cost", "hosts"), [ON_LINKS, ON_CORES, SEVERAL_CORES])
@pytest.mark.parametrize("other", [0.0, 1.5])
def test_the_curve_of_a_simulated_program_is_found_again(cost, hosts, other):
    measured = made(cost, hosts, (1, 2, 8), other=other)
    points = predict(measured, "asynchronous", steps=1200).points
    assert [point.workers for point in points] == [1, 2, 8]
    for point in points:
        assert point.cores == pytest.approx(hosts.cores - other)
        assert abs(point.error) < 0.1


def test_what_an_order_of_messages_and_fewer_bits_would_give():
    cost = replace(ON_LINKS[0], steps_per_message=10, idle=0.0, worker_cpu=0.001)
    measured = made(cost, ON_LINKS[1], (1,))
    points = [
        predict(measured, "asynchronous", steps=400, **options).points[0]
        for options in ({}, {"segments": 2}, {"wire_dtype": "bfloat16"})
    ]
    as_it_is, in_segments, narrow = (point.predicted for point in points)
    assert in_segments > 1.2 * as_it_is
    assert narrow > 1.5 * as_it_is
    assert [point.measured is None for point in points] == [False, True, True]
    with pytest.raises(ValueError, match="'bfloat16' or None; received 'int8'"):
        predict(measured, "asynchronous", wire_dtype="int8")


def test_the_costs_of_a_step_are_found_again():
    cost, hosts = ON_LINKS
    found = cost_of(made(cost, hosts), "asynchronous")
    for name in ("worker_cpu", "ps_cpu", "chief_cpu", "pulled", "pushed", "fed"):
        assert getattr(found, name) == pytest.approx(getattr(cost, name))
    assert found.fullest_ps == pytest.approx(0.75)
    assert found.idle == pytest.approx(cost.idle, abs=0.004)
    cost, hosts = SEVERAL_CORES
    found = cost_of(made(cost, hosts), "asynchronous")
    assert found.parallelism == pytest.approx(1.7, rel=0.15)
    assert found.steps_per_message == 5


def test_the_curve_beyond_what_was_measured():
    cost, hosts = ON_LINKS
    curve = predict(
        made(cost, hosts, (1, 2)),
        "asynchronous",
        up_to=100,
        steps_per_epoch=0,
        steps=800,
    )
    sizes = [point.workers for point in curve.points]
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 100]
    # Measured epochs did end.
    assert all(point.measured is None for point in curve.points)
    assert "fullest ps's link" in curve.points[-1].bound
    # 75% of the bytes of a step through one link.
    assert curve.points[-1].predicted == pytest.approx(25e6 / 0.75e6, rel=0.15)


def test_workers_without_steps_left_do_not_help():
    cost, hosts = replace(ON_CORES[0], chief_cpu=0.0), ON_CORES[1]
    measured = made(cost, hosts, (1, 2))
    few = predict(
        measured,
        "asynchronous",
        up_to=64,
        own_hosts=True,
        steps_per_epoch=64,
        steps=256,
    ).points[-1]
    many = predict(
        measured, "asynchronous", up_to=64, own_hosts=True, steps_per_epoch=0, steps=256
    ).points[-1]
    assert few.bound == "the end of the epoch"
    assert few.predicted < 0.6 * many.predicted


def test_on_hosts_of_their_own_the_cores_are_no_bound():
    cost, hosts = ON_CORES
    measured = made(cost, hosts, (1,))
    shared, own = (
        predict(
            measured,
            "asynchronous",
            up_to=32,
            own_hosts=each,
            steps_per_epoch=0,
            steps=400,
        )
        for each in (False, True)
    )
    assert shared.points[-1].bound == "the cores"
    assert own.points[-1].predicted > 4 * shared.points[-1].predicted
    assert all(point.error is None for point in own.points)


def test_a_policy_that_was_not_measured_is_predicted():
    cost, hosts = ON_CORES
    measured = made(cost, hosts)
    points = predict(measured, "bounded:1", up_to=8, own_hosts=True, steps=200).points
    assert all(point.measured is None for point in points)
    assert points[-1].bound == "the policy"


def test_a_file_that_does_not_tell_the_costs():
    measured = made(*ON_CORES, sizes=(2, 4))
    with pytest.raises(CalibrationError, match=r"1 worker among \[2, 4\].*include 1"):
        cost_of(measured, "asynchronous")
    measured = made(*ON_CORES, sizes=(1,))
    silent = replace(measured.runs[0], epochs=(Epoch(1.0, 100),))
    with pytest.raises(CalibrationError, match="did not report CPU seconds"):
        cost_of(replace(measured, runs=(silent,)), "asynchronous")


def test_without_byte_counts_the_ps_are_equal():
    cost, hosts = ON_CORES
    assert cost_of(made(cost, hosts), "asynchronous").fullest_ps == 0.5


def test_some_of_the_machine_is_always_left():
    measured = made(*ON_CORES, sizes=(1,))
    busy = replace(measured.runs[0].epochs[0], other_cpu=1e9)
    run = replace(measured.runs[0], epochs=(busy,))
    assert hosts_of(measured, [run]).share == 0.5


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "speedup.json"
    path.write_text(made(*ON_LINKS, sizes=(1, 2)).to_json())
    return str(path)


def test_the_command_marks_predictions(file, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.png"
    arguments = ["simulation", "--up_to=4", "--steps=200", f"--plot={picture}", file]
    assert command.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("│")]
    assert [" prediction " in row for row in rows[1:]] == [False] * 2 + [True]
    assert "1.00 MB pulled" in "\n".join(lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one file of launch.speedup; received []"),
        (["no such file"], "No such file"),
        ([__file__], "not a file of `python -m launch.speedup`"),
        (["--up_to=-1"], "up_to"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert command.main(["simulation", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_policy_or_picture_is_told(file, capsys):
    assert command.main(["simulation", "--consistency=ssp", file]) == 2
    assert "received 'ssp'" in capsys.readouterr().err
    assert command.main(["simulation", "--steps=200", "--plot=curve.svg", file]) == 2
    assert "PNG" in capsys.readouterr().err
    assert command.main(["simulation", "--help"]) == 0


def test_a_table_without_measurements():
    curve = predict(
        made(*ON_CORES, sizes=(1,)), "asynchronous", own_hosts=True, steps=200
    )
    assert "cores left" not in view.table(curve)
