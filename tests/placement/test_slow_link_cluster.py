"""A slow link is noticed, between hosts whose links have a rate."""

import importlib
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "programs" / "slow_link.py"
RATE = 200e6 / 8

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.namespaces,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["which", "ip"], stdout=-3).returncode != 0,
        reason="network namespaces are for root, with iproute2",
    ),
]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_slow_link_is_noticed(monkeypatch, num_ps):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    clusters = importlib.import_module("namespace_cluster")
    network = importlib.import_module("netns").network
    with network(clusters.host_names(num_ps)) as hosts:
        hosts.shape("200mbit")
        with clusters.cluster(hosts, num_ps, PROGRAM) as cluster:
            found = cluster.ask()
    # A burst passes at once, and so much less of the 1 MiB is measured.
    assert found["seconds_per_byte"] >= 0.7 / RATE
    assert found["share"] > 0
    assert (found["shards"], found["segments"]) == (2, 2)
