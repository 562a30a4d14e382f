"""What the benchmark of lookups counts and reports, and the hosts that it makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)
from tfdist.placement.partition import even_sizes

from ..support.deadline import DEADLINE
from ..support.namespaces import names_on_this_machine, needs_root

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = ROOT / "tests" / "programs"

pytestmark = pytest.mark.namespaces


@pytest.mark.parametrize("zipf", [0.0, 1.5])
@pytest.mark.parametrize("num_ps", [1, 3])
def test_the_model_of_the_benchmark_is_the_lookups_own(benchmark, num_ps, zipf):
    work = benchmark("lookup_workload")
    workload = work.Workload(num_ps, 8, 5, zipf, num_rows=50, batch_size=7)
    (ids,) = workload.batches(1)
    assert ids.min() >= 0
    assert ids.max() < 50
    shards = [tf.zeros([size, 8]) for size in even_sizes(50, num_ps)]
    counter = LookupBytesCounter()
    embedding_lookup_sparse_with_distributed_aggregation(
        shards, tf.RaggedTensor.from_tensor(ids), None, counter=counter
    )
    total, model = counter.total(), workload.bytes(ids)
    assert (total.plain, total.aggregated, total.moved) == (
        model["plain"],
        model["aggregated"],
        model["chosen"],
    )
    assert model["stock"] > model["plain"]


def test_ids_of_a_steeper_law_repeat_more(benchmark):
    work = benchmark("lookup_workload")
    unique = [
        len(set(work.Workload(1, 8, 50, zipf, 1000, 20).batches(1).flat))
        for zipf in (0.0, 1.0, 1.5)
    ]
    assert unique == sorted(unique, reverse=True)
    assert unique[0] > 2 * unique[-1]


def test_a_sweep_is_summed_up(benchmark):
    report = benchmark("embedding_report")
    routes = ("stock", "plain", "aggregated", "chosen")
    points = [
        {"dim": 1, "stock": 9, "plain": 8, "aggregated": 4, "chosen": 4},
        {"dim": 2, "stock": 9, "plain": 8, "aggregated": 8, "chosen": 6},
        {"dim": 3, "stock": 4, "plain": 4, "aggregated": 8, "chosen": 5},
    ]
    summary = report.summary(points, routes)
    assert summary["axes"] == {"dim": [1, 2, 3]}
    assert summary["worse"] == 1
    assert summary["better_than_both"] == 1
    assert summary["chosen_over_better"] == [0.75, 1.25]


SERVE = """
import socket
connection, _ = socket.create_server(("", 2)).accept()
while connection.recv(65536):
    pass
"""


@needs_root
def test_hosts_reach_each_other_and_are_counted(benchmark):
    with benchmark("netns").network(["a", "b"]) as hosts:
        hosts.shape("1gbit")
        hosts.shape(None)
        server = subprocess.Popen(hosts.command("b", [sys.executable, "-c", SERVE]))
        before = hosts.bytes("b")[0]
        client = [sys.executable, PROGRAMS / "send_bytes.py", hosts.address("b")]
        subprocess.run(hosts.command("a", client), check=True, timeout=DEADLINE)
        server.wait(timeout=DEADLINE)
        assert hosts.bytes("b")[0] - before >= 50_000


@needs_root
def test_hosts_are_gone_after_an_error(benchmark):
    netns = benchmark("netns")

    def fail():
        with netns.network(["a", "b"]):
            assert f"tfd{os.getpid()}" in names_on_this_machine()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert f"tfd{os.getpid()}" not in names_on_this_machine()


@needs_root
def test_hosts_of_a_process_that_was_killed_are_removed(benchmark):
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import netns\n"
        "with netns.network(['a']): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, str(BENCHMARKS)])
    assert killed.wait(timeout=DEADLINE) == -9
    assert f"tfd{killed.pid}" in names_on_this_machine()
    with benchmark("netns").network(["b"]):
        assert f"tfd{killed.pid}" not in names_on_this_machine()


def test_the_measurements_are_all_there():
    done = json.loads((BENCHMARKS / "measured" / "embedding_traffic.json").read_text())
    assert {row["part"] for row in done["measured"]} == {"bytes", "speed", "grid"}
    assert done["model"]["worse"] == 0
