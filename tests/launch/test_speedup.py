"""The measuring command without a cluster: its flags, its counters, its file."""

import os
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

import launch.speedup
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.job.plan import Program
from launch.loopback.cluster import at_free_ports
from launch.measure import counters
from launch.measure.counters import Sampler, cpu_of
from launch.measure.run import Measured, _telling
from launch.measure.shaped import RateError, burst_of, bytes_per_second
from launch.speedup import PlannedRun, schedule, table
from tf_config import contract
from tf_config.contract import EpochRecord
from tf_config.speedup import Epoch, Run, Speedup, SpeedupFileError


def epoch(seconds, steps=100, loss=1.0, **changes):
    return Epoch(
        **{
            "seconds": seconds,
            "steps": steps,
            "messages": 10,
            "logs": {"loss": loss},
            "cpu": {"chief": 0.1, "ps:0": 0.2, "ps:1": 0.2, "worker:0": 1.0},
            **changes,
        }
    )


def run(workers=1, repeat=0, policy="asynchronous", rate=10.0):
    epochs = (epoch(99.0, loss=0.9), epoch(100 / rate, loss=0.5), epoch(100 / rate))
    return Run(workers, policy, repeat, 0, 120.0, policy, epochs)


MEASURED = Speedup(
    ("train.py", "--epochs=3"),
    num_ps=2,
    cores=4,
    runs=tuple(
        run(workers, repeat, rate=10.0 * workers**0.5 * (1 + repeat / 10))
        for repeat in range(3)
        for workers in (1, 4)
    ),
)


def test_every_size_is_measured_in_turn():
    sizes = schedule(["4", "1"], ["asynchronous", "bounded:2"], 3)
    assert [each.repeat for each in sizes] == [0] * 4 + [1] * 4 + [2] * 4
    first = [(each.workers, each.consistency) for each in sizes[:4]]
    assert first == [
        *((1, "asynchronous"), (1, "bounded:2")),
        *((4, "asynchronous"), (4, "bounded:2")),
    ]
    assert [(each.workers, each.consistency) for each in sizes[4:8]] == first[::-1]


@pytest.mark.parametrize(
    ("workers", "policies", "message"),
    [
        (["0"], ["asynchronous"], "numbers from 1, as in 1,2,4; received '0'"),
        (["two"], ["asynchronous"], "received 'two'"),
        (["1", "1"], ["asynchronous"], r"--workers names each value once.*\[1, 1\]"),
        ([], ["asynchronous"], "one at least"),
        (["1"], ["bounded"], "--consistency: a policy is .*received 'bounded'"),
        (["1"], ["synchronous", "synchronous"], "--consistency names each value once"),
    ],
)
def test_sizes_that_cannot_be_measured(workers, policies, message):
    with pytest.raises(UsageError, match=message):
        schedule(workers, policies, 1)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import tfdist\n")
    return str(path)


def test_a_dry_run_shows_the_runs_and_the_largest_job(script, capsys):
    flags = ["--dry_run", "--workers=1,3", "--repeats=1", "--consistency=bounded:4"]
    assert launch.speedup.main(["launch.speedup", *flags, script]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "# 1 worker, bounded:4, repeat 1",
        "# 3 workers, bounded:4, repeat 1",
    ]
    assert sum(line.startswith("# worker:") for line in lines) == 3


def test_only_the_leader_writes_the_epochs(script):
    values = launch.speedup._define_flags()
    values, program = command_line.parse(["x", "--num_ps=1", script], values, "")
    assert program == Program(script)
    job = launch.speedup._job(values, program, 2, at_free_ports)
    told = {contract.HISTORY: "there", contract.CONSISTENCY: "synchronous"}
    env = {plan.name: plan.env for plan in _telling(job, told).plans}
    assert told.items() <= env["chief"].items()
    assert all(not told.keys() & env[name].keys() for name in ("ps:0", "worker:1"))
    values["num_ps"].value = 0
    values["program"].value = "every_task"
    job = launch.speedup._job(values, program, 2, at_free_ports)
    env = {plan.name: plan.env for plan in _telling(job, told).plans}
    assert told.items() <= env["worker:0"].items()
    assert contract.HISTORY not in env["worker:1"]
    assert env["worker:1"][contract.CONSISTENCY] == "synchronous"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Measured(1, 5.0, ("ps:0 died",)), "failed (ps:0 died); see logs"),
        (Measured(0, 5.0), "no epoch was reported"),
        (
            Measured(0, 5.0, policy="asynchronous", epochs=(epoch(2.0), epoch(4.0))),
            "4.00 s/epoch, 25.0 steps/s; the script's strategy has consistency "
            "asynchronous, whatever --consistency=bounded:4 says",
        ),
    ],
)
def test_a_run_is_reported_in_a_line(found, said, script):
    values = launch.speedup._define_flags()
    values, program = command_line.parse(["x", "--log_dir=logs", script], values, "")
    job = launch.speedup._job(values, program, 1, at_free_ports)
    assert said in launch.speedup._report(found, PlannedRun(1, "bounded:4", 0), job)


def test_counters_grow_evenly_between_readings():
    sampler = Sampler(dict, 1.0)
    sampler._times = [10.0, 20.0, 30.0]
    sampler._samples = [{"a": 1.0}, {"a": 3.0}, {"a": 3.0, "b": 4.0}]
    assert sampler.between(15.0, 25.0) == {"a": 1.0, "b": 2.0}
    assert sampler.between(10.0, 30.0) == {"a": 2.0, "b": 4.0}
    assert sampler.between(0.0, 99.0) == {"a": 2.0, "b": 4.0}
    assert Sampler(dict, 1.0).between(0.0, 1.0) == {}


def test_a_sampler_reads_while_it_is_active():
    count = iter(range(10**6))
    with Sampler(lambda: {"n": float(next(count))}, 0.001) as sampler:
        began = time.time()
        while next(count) < 100:
            time.sleep(0.001)
    assert sampler.between(began, time.time())["n"] > 0


def test_the_cpu_time_of_this_process_is_counted():
    read = cpu_of({"chief": os.getpid(), "gone": 2**22 + 1})
    before, deadline = read(), time.process_time() + 0.3
    while time.process_time() < deadline:
        pass
    after = read()
    assert 0.2 < after["chief"] - before["chief"] < 5
    assert after[""] - before[""] > 0.1
    assert after["gone"] == 0.0


def test_bytes_belong_to_the_process_that_has_the_connection():
    lines = [
        'users:(("python",pid=9,fd=3)) cubic bytes_acked:7 bytes_received:5 rto:2',
        'users:(("sh",pid=8,fd=1),("python",pid=9,fd=4)) bytes_received:10',
        'users:(("python",pid=99,fd=3)) bytes_acked:1000',
        "no process",
    ]
    found = counters.bytes_in(lines, {"ps:0": 9, "chief": 5})
    assert found == {"sent ps:0": 7.0, "received ps:0": 15.0}


@pytest.mark.parametrize("rate", ["", "1", "0mbit", "1mbps", "-1gbit", "1 gbit"])
def test_a_rate_that_tc_could_misunderstand(rate):
    with pytest.raises(RateError):
        bytes_per_second(rate)


def test_bursts_are_small_against_a_second():
    assert burst_of(bytes_per_second("1gbit")) == 250_000
    assert burst_of(bytes_per_second("10mbit")) == 70_000


def test_an_epoch_survives_the_file():
    record = EpochRecord(3, 1.5, 2.5, 100, 10, "bounded:4", {"loss": 0.25})
    assert EpochRecord.from_line(record.to_line()) == record


def test_the_file_survives():
    assert Speedup.from_json(MEASURED.to_json()) == MEASURED


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "other"}', MEASURED.to_json().replace("cpu", "x")],
)
def test_another_file_is_refused(text):
    with pytest.raises(SpeedupFileError):
        Speedup.from_json(text)


def test_the_first_epoch_does_not_count():
    one = run(rate=20.0)
    assert one.seconds_per_epoch == 5.0
    assert one.steps_per_second == 20.0
    assert replace(one, epochs=one.epochs[:1]).steady == one.epochs[:1]


def test_the_speedup_is_a_median_of_paired_ratios():
    assert MEASURED.speedup("asynchronous", 4) == pytest.approx(2.0)
    slower = replace(run(1, repeat=0), epochs=(epoch(1.0), epoch(50.0)))
    measured = replace(MEASURED, runs=(slower, *MEASURED.runs[1:]))
    assert measured.speedup("asynchronous", 4) == pytest.approx(2.0)
    assert MEASURED.speedup("synchronous", 4) is None


def test_the_table_has_a_row_per_size():
    found = table(MEASURED)
    columns = [(column.header, list(column.cells)) for column in found.columns]
    for column in (
        ("workers", ["1", "4"]),
        ("steps/s", ["11.0", "22.0"]),
        ("speedup", ["1.00", "2.00"]),
        ("ps", ["0.40", "0.40"]),
    ):
        assert column in columns


@pytest.mark.parametrize(
    ("rate", "repeats"), [("200mbit", 5), ("1gbit", 5), ("500mbit", 2)]
)
def test_the_page_shows_what_was_measured(rate, repeats):
    root = Path(__file__).parents[2]
    file = f"benchmarks/measured/speedup_{rate}.json"
    measured = Speedup.from_json((root / file).read_text())
    section = (root / "docs" / "measured-speedup.md").read_text().partition(file)[2]
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \|", section, re.M)[:4]
    assert [int(workers) for workers, *_ in rows] == measured.sizes
    for workers, steps, speedup in rows:
        runs = measured.of("asynchronous", int(workers))
        assert len(runs) == repeats
        rate = statistics.median(run.steps_per_second for run in runs)
        assert f"{rate:.1f}" == steps
        ratio = measured.speedup("asynchronous", int(workers))
        assert f"{ratio:.2f}" == speedup
