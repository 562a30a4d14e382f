"""A slow link is noticed, between hosts whose links have a rate."""

from pathlib import Path

import pytest

from ..support.namespaces import needs_root

PROGRAM = Path(__file__).parents[1] / "programs" / "slow_link.py"
RATE = 200e6 / 8

pytestmark = [pytest.mark.cluster, pytest.mark.namespaces, needs_root]


@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_slow_link_is_noticed(benchmark, num_ps):
    clusters, network = benchmark("namespace_cluster"), benchmark("netns").network
    with network(clusters.host_names(num_ps)) as hosts:
        hosts.shape("200mbit")
        with clusters.cluster(hosts, num_ps, PROGRAM) as cluster:
            found = cluster.ask()
    # A burst passes at once, and so much less of the 1 MiB is measured.
    assert found["seconds_per_byte"] >= 0.7 / RATE
    assert found["share"] > 0
    assert (found["shards"], found["segments"]) == (2, 2)
