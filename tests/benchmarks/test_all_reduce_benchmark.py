"""The all-reduce benchmark between hosts: that it runs, and what it reports."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from ..launch_programs.launcher import wait_for
from ..support import jobs
from ..support.deadline import DEADLINE, PROGRAM_DEADLINE
from ..support.namespaces import names_on_this_machine, needs_root
from ..support.processes import still_running

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PROGRAM = [sys.executable, str(BENCHMARKS / "all_reduce.py")]

pytestmark = pytest.mark.namespaces


def test_every_row_was_measured(benchmark):
    report = benchmark("all_reduce_report")
    runs = [report.pages.measured(name) for name in report.RUNS]
    measured = report.combined(runs)["measured"]
    results = benchmark("all_reduce_results").Results(measured)
    assert results.rows == list(report.LABELS)
    assert results.hosts == [4, 8]
    assert results.rates == ["200mbit", "1gbit", "none"]
    assert min(results.sizes) <= 4_000
    assert max(results.sizes) >= 100_000_000
    assert {each["part"] for each in measured} == {"reduce", "overlap"}
    assert all(max(row["repeat"] for row in run["measured"]) >= 4 for run in runs)


def test_a_backward_pass_that_waits_gives_each_layers_gradient(benchmark):
    backward = benchmark("all_reduce_bench")
    weights = [tf.Variable([float(i), 2.0]) for i in range(3)]
    wait = backward.Waiter(seconds=0.001)
    step = tf.function(lambda: backward.gradients(weights, wait))
    found = [each.numpy().tolist() for each in step()]
    assert found == [[0.0, 2.0], [1.0, 2.0], [2.0, 2.0]]
    operations = step.get_concrete_function().graph.get_operations()
    assert [op.type for op in operations].count("IteratorGetNext") == 3


@needs_root
@pytest.mark.cluster
def test_it_runs_between_two_hosts(benchmark, tmp_path):
    path = tmp_path / "all_reduce.json"
    flags = ["--parts=reduce", "--hosts=2", "--rates=none", "--repeats=1"]
    flags += ["--sizes=4e5", "--rounds=2", f"--json={path}"]
    jobs.run(*PROGRAM[1:], *flags)
    results = benchmark("all_reduce_results").Results(
        json.loads(path.read_text())["measured"]
    )
    point = {"hosts": 2, "rate": "none", "size": 400_000}
    # Whoever does not really reduce moves less.
    for rounds in (1, 2):
        for row in ("choice", "ring", "RING", "AUTO", "ReductionToOneDevice"):
            moved = results.bytes_over_limit(row=row, rounds=rounds, **point)
            assert 1.0 <= moved <= 1.1, row
    assert 0.5 <= results.bytes_over_limit(row="ring_bfloat16", **point) <= 0.56


@pytest.mark.in_part("15")
@needs_root
@pytest.mark.cluster
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_interrupted(signum):
    program = subprocess.Popen(
        [*PROGRAM, "--hosts=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # What a shell starts in the background ignores SIGINT, and so what that starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    children = lambda: psutil.Process(program.pid).children(recursive=True)  # noqa: E731
    runs = lambda: len(children()) >= 5 or program.poll() is not None  # noqa: E731
    wait_for(runs, "all hosts", within=PROGRAM_DEADLINE)
    assert program.poll() is None, program.communicate()[0].decode()
    running = children()
    assert f"tfd{program.pid}" in names_on_this_machine()
    program.send_signal(signum)
    program.communicate(timeout=DEADLINE)
    assert still_running(running) == []
    assert f"tfd{program.pid}" not in names_on_this_machine()


@needs_root
def test_making_hosts_without_the_privilege_is_an_error():
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    ran = subprocess.run(
        [*powerless, *PROGRAM],
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
    )
    assert ran.returncode == 2
    assert "Network namespaces are for root" in ran.stderr
    assert "Traceback" not in ran.stderr
