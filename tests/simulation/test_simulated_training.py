"""The simulated parameter-server training: its limits, its policies, its determinism."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_config import contract
from tfdist import Asynchronous, BoundedStaleness, Synchronous
from tfdist.consistency.setting import policy_of, policy_of_environment
from tfdist.research.simulation.parameter_server import LINKS, POLICY, STEPS, simulate
from tfdist.research.simulation.size import MOST_WORKERS, announce, size_of
from tfdist.research.simulation.step_cost import Hosts, StepCost

from ..support.raising import raises

COST = StepCost(worker_cpu=0.03, ps_cpu=0.004, chief_cpu=0.001)
SLOW, LINK = Hosts(4.0, rate=1e7), "the fullest ps's link"
costs = st.builds(
    StepCost,
    worker_cpu=st.floats(0.001, 0.1),
    ps_cpu=st.floats(0.0, 0.01),
    chief_cpu=st.floats(0.0, 0.005),
    pulled=st.floats(0.0, 1e7),
    pushed=st.floats(0.0, 1e7),
    fed=st.floats(0.0, 1e5),
    steps_per_message=st.integers(1, 10),
    idle=st.floats(0.0, 0.05),
    parallelism=st.floats(0.5, 2.0),
    spread=st.sampled_from([0.0, 0.1, 0.5]),
    fullest_ps=st.sampled_from([1.0, 0.5, 0.3]),
    segments=st.integers(1, 3),
)
hosts = st.builds(
    Hosts,
    cores=st.floats(1.0, 16.0),
    share_one=st.booleans(),
    rate=st.sampled_from([math.inf, 25e6, 125e6]),
)
policies = st.sampled_from([Asynchronous(), BoundedStaleness(3), Synchronous()])


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(costs, hosts, st.integers(1, 12), policies)
def test_no_run_is_faster_than_its_parts(cost, hosts, workers, policy):
    steps = 240
    found = simulate(cost, hosts, workers, policy, steps=steps)
    assert all(share <= 1 + 1e-6 for share in found.busy.values())
    # Workers without spread stay in step, and all of them end a step at once.
    assert found.steps == pytest.approx(0.75 * steps, abs=workers)
    if not cost.spread:
        # Between two steps of a message, the ps serves a segment of the next step while it
        # writes one of the last, which `alone` counts one after the other.
        serving = cost.ps_cpu / hosts.ps_parallelism(cost.fullest_ps)
        both_ways = (1 - 1 / cost.steps_per_message) * (1 - 1 / cost.segments) / 2
        least = cost.alone(hosts) - serving * both_ways
        most = (found.steps + workers) / found.steps * workers / least
        assert found.steps_per_second <= most


@pytest.mark.parametrize("segments", [1, 2, 4])
@pytest.mark.parametrize("policy", [Asynchronous(), BoundedStaleness(3)])
def test_segments_use_both_directions_of_a_link(segments, policy):
    """Of n segments, a step takes (n + 1) / n of one direction in place of two."""
    cost = StepCost(
        worker_cpu=1e-6,
        pulled=1e6,
        pushed=1e6,
        steps_per_message=100,
        spread=0.0,
        fullest_ps=0.1,
        segments=segments,
    )
    found = simulate(cost, Hosts(rate=25e6), 1, policy, steps=2000)
    # A step that a policy may let wait reads nothing before it starts.
    directions = 1 + 1 / segments if policy == Asynchronous() else 2
    assert found.steps_per_second == pytest.approx(25 / directions, rel=0.02)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(costs, st.integers(1, 10), st.integers(1, 10))
def test_more_workers_on_their_own_hosts_are_not_slower(cost, workers, more):
    free = replace(cost, chief_cpu=0.0, ps_cpu=0.0, fed=0.0, spread=0.0)
    rates = [
        simulate(free, Hosts(4.0), each, Asynchronous(), steps=40 * each)
        for each in (workers, workers + more)
    ]
    few, many = (each.steps_per_second for each in rates)
    assert many >= few * (1 - 1e-9)
    assert few == pytest.approx(workers / free.alone(Hosts(4.0)), rel=0.05)


def test_one_worker_takes_the_sum_of_the_parts():
    cost = replace(COST, idle=0.01, pulled=1e6, pushed=2e6, spread=0.0)
    hosts = Hosts(2.0, share_one=True, rate=1e8)
    found = simulate(cost, hosts, 1, Asynchronous(), steps=200)
    # The chief works beside it, on the other core.
    assert found.steps_per_second == pytest.approx(1 / (0.03 + 0.004 + 0.01 + 0.03))
    assert found.bound == STEPS


@pytest.mark.not_in_gate
@pytest.mark.parametrize(
    ("cost", "hosts", "bound", "rate"),
    [
        (COST, Hosts(2.0, share_one=True), "the cores", 2 / 0.035),
        (COST, Hosts(4.0), "the chief's interpreter", 1 / 0.001),
        (replace(COST, ps_cpu=0.02), Hosts(4.0), "the cores of the fullest ps", 200.0),
        (replace(COST, pulled=1e6, fullest_ps=0.5), SLOW, f"{LINK}, out", 20.0),
        (replace(COST, pushed=1e6), SLOW, f"{LINK}, in", 10.0),
        (replace(COST, fed=1e5), SLOW, "the chief's link", 100.0),
    ],
)
def test_the_curve_flattens_at_its_bound(cost, hosts, bound, rate):
    found = simulate(cost, hosts, 100, Asynchronous(), steps=2000)
    assert found.bound == bound
    assert found.steps_per_second == pytest.approx(rate, rel=0.06)


def test_a_step_that_mostly_moves_bytes_is_limited_by_the_links():
    cost = replace(COST, pulled=1e6, pushed=1e6, fullest_ps=0.5)
    slow, fast = (
        simulate(cost, Hosts(4.0, rate=rate), 1, Asynchronous(), steps=100)
        for rate in (25e6, 1e9)
    )
    assert (slow.bound, fast.bound) == (LINKS, STEPS)


def test_steps_that_only_move_bytes_need_more_than_one_ps_for_three_workers():
    """And one for 1.6 is enough, as docs/placement.md says."""

    def waiting(num_ps):
        moves = StepCost(1e-6, 0.004, 0.001, 1e6, 1e6, fullest_ps=1 / num_ps)
        found = simulate(moves, SLOW, 8, Asynchronous(), steps=1600)
        return sum(found.lost[f"{LINK}, {way}"] for way in ("in", "out"))

    assert waiting(3) > 0.3
    assert waiting(5) < 0.1


def test_under_a_bound_the_others_are_not_simulated():
    found = [
        simulate(COST, Hosts(4.0), workers, BoundedStaleness(2), steps=200)
        for workers in (32, 10_000)
    ]
    assert found[0] == found[1]
    assert size_of(Synchronous(), 1000).workers == 1000


@pytest.mark.parametrize("workers", [0, -1, MOST_WORKERS + 1])
def test_a_number_of_workers_that_is_not_simulated(workers):
    with pytest.raises(ValueError, match=f"from 1 to 100,000.* received {workers}"):
        simulate(COST, Hosts(), workers, Asynchronous())


def test_a_long_simulation_is_announced(capsys):
    announce([size_of(Asynchronous(), 1000)])
    assert not capsys.readouterr().err
    announce(size_of(Asynchronous(), each) for each in (1000, 10_000))
    assert capsys.readouterr().err == "simulating takes about 12 s\n"


@pytest.mark.not_in_gate
@settings(deadline=None, max_examples=25)
@given(costs, st.integers(1, 12), st.integers(0, 8))
def test_the_staleness_is_bounded(cost, workers, bound):
    policy = BoundedStaleness(bound)
    found = simulate(cost, Hosts(4.0), workers, policy, steps=150)
    assert found.max_staleness <= bound


@pytest.mark.not_in_gate
def test_a_bound_of_the_workers_is_used_up():
    found = simulate(COST, Hosts(4.0), 8, BoundedStaleness(4), steps=2000)
    assert found.max_staleness == 4
    assert found.bound == POLICY


def test_staleness_without_a_bound():
    found = simulate(COST, Hosts(4.0), 8, Asynchronous(), steps=2000)
    # While one worker computes, each of the others writes about once.
    assert found.staleness == pytest.approx(7, abs=0.2)


def test_synchronous_rounds_have_no_staleness_and_wait_for_the_slowest():
    cost = replace(COST, spread=0.5)
    found = simulate(cost, Hosts(4.0), 8, Synchronous(), steps=1600)
    assert (found.max_staleness, found.dropped) == (0, 0)
    assert found.lost[POLICY] > 0.2
    free = simulate(cost, Hosts(4.0), 8, Asynchronous(), steps=1600)
    assert found.steps_per_second < 0.8 * free.steps_per_second


@pytest.mark.not_in_gate
def test_backup_workers_drop_the_late():
    cost = replace(COST, spread=0.5)
    plain, backed = (
        simulate(cost, Hosts(4.0), 8, Synchronous(each), steps=1600) for each in (0, 2)
    )
    assert backed.dropped > 0
    assert backed.max_staleness == 0
    # Rounds are shorter by more than they are smaller.
    rounds = [plain.steps_per_second / 8, backed.steps_per_second / 6]
    assert rounds[1] > 1.2 * rounds[0]


def test_equal_seeds_give_equal_runs():
    def run(seed):
        return simulate(COST, Hosts(2.0, True), 4, Asynchronous(), steps=200, seed=seed)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_policy_that_lets_nothing_start_is_named():
    class Never(BoundedStaleness):
        def may_start(self, step, state):
            return False

    with raises(ValueError, "Never", "after 0"):
        simulate(COST, Hosts(), 2, Never(3))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("asynchronous", Asynchronous()),
        ("bounded:0", BoundedStaleness(0)),
        ("synchronous", Synchronous()),
        ("synchronous:2", Synchronous(2)),
    ],
)
def test_policies_by_name(text, policy):
    assert contract.is_policy(text)
    assert policy_of(text) == policy
    assert policy_of_environment({contract.CONSISTENCY: text}) == policy


def test_without_a_setting_training_is_asynchronous():
    assert policy_of_environment({}) == Asynchronous()


@pytest.mark.parametrize(
    "text",
    [
        "",
        *("bounded", "bounded:-1", "bounded:x", "bounded:auto"),
        "synchronous:auto",
        "asynchronous:1",
        "sync",
    ],
)
def test_an_unknown_policy_says_which_there_are(text):
    with raises(ValueError, "bounded:STALENESS", "received"):
        policy_of(text)
    assert not contract.is_policy(text)
    with raises(ValueError, "TFDIST_CONSISTENCY"):
        policy_of_environment({contract.CONSISTENCY: text})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worker_cpu": -1.0}, "worker_cpu must be a finite number >= 0"),
        ({"worker_cpu": 0.0}, "a step takes time"),
        ({"steps_per_message": 0}, "steps_per_message must be a finite number >= 1"),
        ({"parallelism": 0.0}, "parallelism must be > 0"),
        ({"fullest_ps": 1.5}, "fullest_ps is a share"),
    ],
)
def test_an_impossible_step_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(COST, **change)


def test_impossible_hosts_and_too_few_steps_are_refused():
    with raises(ValueError, "cores"):
        Hosts(cores=0.0)
    with raises(ValueError, "7 steps", "4 workers"):
        simulate(COST, Hosts(2.0, True), 4, Asynchronous(), steps=7)
