"""Predicted curves: what a simulation has made, another one finds again."""

import math
from dataclasses import replace

import pytest

from tf_config.speedup import Epoch, Run, Speedup
from tfdist import Asynchronous
from tfdist.research import simulate as command
from tfdist.research.simulation import parameter_server, view
from tfdist.research.simulation.calibration import (
    LINK_EFFICIENCY,
    SPREAD,
    CalibrationError,
    cost_of,
    hosts_of,
)
from tfdist.research.simulation.parameter_server import simulate
from tfdist.research.simulation.prediction import JobChanges, predict
from tfdist.research.simulation.step_cost import Hosts, Parts, StepCost

from ..support.raising import raises

# Each simulates thousands of steps.
pytestmark = pytest.mark.slow

STEPS = 200


def made(cost, hosts, sizes=(1, 2, 4, 8), other=0.0, seed=7):
    """A file as `launch.speedup` writes it, of simulated runs."""
    runs = []
    for workers in sizes:
        left = replace(hosts, share=1 - other / hosts.cores)
        length = {"steps": 1200, "epoch_steps": STEPS, "seed": seed}
        outcome = simulate(cost, left, workers, Asynchronous(), **length)
        seconds = STEPS / outcome.steps_per_second
        shares = {"ps:0": cost.fullest_ps, "ps:1": 1 - cost.fullest_ps}
        sent = {ps: cost.pulled * share * STEPS for ps, share in shares.items()}
        received = {ps: cost.pushed * share * STEPS for ps, share in shares.items()}
        sent["chief"] = cost.fed * STEPS
        cpu = {"chief": cost.chief_cpu * STEPS, "ps:0": cost.ps_cpu * STEPS}
        each_worker = cost.worker_cpu * STEPS / workers
        cpu |= {f"worker:{at}": each_worker for at in range(workers)}
        used = {"cpu": cpu, "sent": sent, "received": received}
        messages = STEPS // cost.steps_per_message
        epoch = Epoch(seconds, STEPS, messages, other_cpu=other * seconds, **used)
        epochs = (epoch,) * 3
        runs.append(Run(workers, "asynchronous", 0, 0, 1.0, "asynchronous", epochs))
    rate = None if math.isinf(hosts.rate) else hosts.rate / LINK_EFFICIENCY
    cores = int(hosts.cores)
    return Speedup(("train.py",), 2, cores, rate, int(hosts.burst), tuple(runs))


# Seconds of the worker, the ps and the chief, then bytes: pulled, pushed and fed.
MOVING = (0.01, 0.006, 0.005, 1e6, 1e6, 1e5)
COMPUTING = (0.03, 0.002, 0.001)
ON_LINKS = (
    StepCost(*MOVING, idle=0.004, fullest_ps=0.75, spread=SPREAD),
    Hosts(4.0, True, 25e6, 70_000.0),
)
ON_CORES = (
    StepCost(*COMPUTING, idle=0.01, steps_per_message=5, fullest_ps=0.5, spread=SPREAD),
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
        predict(measured, "asynchronous", changes, steps=400).points[0]
        for changes in (
            JobChanges(),
            JobChanges(segments=2),
            JobChanges(half_of_the_bits=True),
        )
    ]
    as_it_is, in_segments, narrow = (point.predicted for point in points)
    assert in_segments > 1.2 * as_it_is
    assert narrow > 1.5 * as_it_is
    assert [point.measured is None for point in points] == [False, True, True]


def test_more_ps_and_faster_links_until_something_else_is_the_limit():
    measured = made(*ON_LINKS, (1,))

    def last(**changes):
        changes = JobChanges(own_hosts=True, steps_per_epoch=0, **changes)
        curve = predict(measured, "asynchronous", changes, up_to=32, steps=400)
        return curve.num_ps, curve.points[-1]

    # A ps passes 75% of the 1 MB that a step reads, or as much as the others, at 25 MB/s.
    num_ps, as_measured = last()
    assert num_ps == 2
    assert as_measured.predicted == pytest.approx(25 / 0.75, rel=0.15)
    num_ps, equal = last(num_ps=4)
    assert num_ps == 4
    assert equal.predicted == pytest.approx(25 / 0.25, rel=0.15)
    assert "fullest ps's link" in equal.bound
    _, fast = last(num_ps=4, rate=1e9)
    # The chief takes 5 ms for a step.
    assert fast.bound == "the chief's interpreter"


def test_each_bound_has_something_that_helps():
    hosts = (Hosts(4.0, share_one, 25e6) for share_one in (False, True))
    resources = [each for one in hosts for each in Parts(ON_LINKS[0], one).resources]
    bounds = {each.name for each in resources}
    bounds |= {
        getattr(parameter_server, each)
        for each in ("STEPS", "POLICY", "EPOCH", "LINKS")
    }
    assert len(bounds) == 10
    assert all(view.what_helps(bound) for bound in bounds)


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
    measured, endless = made(cost, hosts, (1, 2)), JobChanges(steps_per_epoch=0)
    curve = predict(measured, "asynchronous", endless, up_to=100, steps=800)
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
    few, many = (
        predict(measured, "asynchronous", changes, up_to=64, steps=256).points[-1]
        for changes in (JobChanges(own_hosts=True, steps_per_epoch=s) for s in (64, 0))
    )
    assert few.bound == "the end of the epoch"
    assert few.predicted < 0.6 * many.predicted


def test_on_hosts_of_their_own_the_cores_are_no_bound():
    cost, hosts = ON_CORES
    measured = made(cost, hosts, (1,))
    shared, own = (
        predict(measured, "asynchronous", changes, up_to=32, steps=400)
        for changes in (
            JobChanges(own_hosts=own, steps_per_epoch=0) for own in (False, True)
        )
    )
    assert shared.points[-1].bound == "the cores"
    assert own.points[-1].predicted > 4 * shared.points[-1].predicted
    assert all(point.error is None for point in own.points)


def test_a_policy_that_was_not_measured_is_predicted():
    cost, hosts = ON_CORES
    measured = made(cost, hosts)
    own_hosts = JobChanges(own_hosts=True)
    points = predict(measured, "bounded:1", own_hosts, up_to=8, steps=200).points
    assert all(point.measured is None for point in points)
    assert points[-1].bound == "the policy"


def test_a_file_that_does_not_tell_the_costs():
    measured = made(*ON_CORES, sizes=(2, 4))
    with raises(CalibrationError, "1 worker", "[2, 4]"):
        cost_of(measured, "asynchronous")
    measured = made(*ON_CORES, sizes=(1,))
    silent = replace(measured.runs[0], epochs=(Epoch(1.0, 100),))
    with raises(CalibrationError, "CPU seconds"):
        cost_of(replace(measured, runs=(silent,)), "asynchronous")


def test_without_byte_counts_the_ps_are_equal():
    assert cost_of(made(*ON_CORES), "asynchronous").fullest_ps == 0.5


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
    assert "asynchronous, 2 ps" in "\n".join(lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_has_a_table_for_each_policy_and_number_of_ps(file, capsys):
    arguments = ["--num_ps=2,4", "--consistency=asynchronous,bounded:1"]
    arguments += ["--own_hosts", "--cores=2", "--gbits=1", "--wire_dtype=bfloat16"]
    assert command.main(["simulate", *arguments, "--steps=100", file]) == 0
    told = capsys.readouterr().out
    assert "50% of the bytes on the fullest ps" in told
    assert "25% of the bytes on the fullest ps" in told
    assert "0.50 MB pulled" in told
    for policy in ("asynchronous", "bounded:1"):
        assert f"{policy}, 2 ps" in told
        assert f"{policy}, 4 ps" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one file of launch.speedup; received []"),
        (["no such file"], "No such file"),
        ([__file__], "not a file of `python -m launch.speedup`"),
        (["--up_to=-1"], "up_to"),
        (["--num_ps=2,x", __file__], "--num_ps must be one number of ps or several"),
        (["--num_ps=0", __file__], "received '0'"),
        (["--gbits=0", __file__], "gbits"),
        (["--wire_dtype=int8", __file__], "wire_dtype"),
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
    measured = made(*ON_CORES, sizes=(1,))
    curve = predict(measured, "asynchronous", JobChanges(own_hosts=True), steps=200)
    assert "cores left" not in view.table(curve)
