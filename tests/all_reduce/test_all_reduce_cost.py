"""The cost formulas match the schedules and the numbers on the page."""

import dataclasses
import importlib
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdist
from tfdist.all_reduce import choice, cost
from tfdist.all_reduce.cost import COSTS, Cost
from tfdist.all_reduce.network import CostError, Network
from tfdist.all_reduce.schedule import SCHEDULES, Schedule, ScheduleError, build, ring

ROOT = Path(__file__).resolve().parents[2]
MB = 1_000_000
HOSTS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]
# 200 Mbit/s, and messages that follow each other faster than they arrive.
SLOW = Network(1e-3, 25e6, 2e-10, 1e-4)

networks = st.builds(
    lambda latency, share, bandwidth, reduced: Network(
        latency, bandwidth, reduced, latency * share
    ),
    st.floats(0, 1e-2),
    st.floats(0, 1),
    st.floats(1e6, 1e10),
    st.floats(0, 1e-8),
)
sizes = st.integers(0, 10**9)


def counted(schedule: Schedule) -> Cost:
    """Counts, transfer by transfer, what the formulas say."""
    chunk = Fraction(1, schedule.num_chunks)
    messages = busiest_messages = 0
    busiest_size = reduced = Fraction(0)
    for transfers in schedule.steps:
        links = {(each.sender, each.receiver) for each in transfers}
        messages += len(links)
        busiest_messages += most([s for s, _ in links], [r for _, r in links])
        busiest_size += chunk * most(
            [each.sender for each in transfers], [each.receiver for each in transfers]
        )
        reduced += chunk * most([e.receiver for e in transfers if e.reduces])
    busiest_link = max(schedule.busiest_sent, schedule.busiest_received)
    return Cost(
        schedule.num_steps,
        messages,
        busiest_messages,
        busiest_size,
        busiest_link,
        reduced,
        chunk * len(schedule.transfers),
    )


def most(*users: list[int]) -> int:
    return max(max(Counter(each).values(), default=0) for each in users)


def pipelined(num_devices: int, network: Network, size: int, segments: int) -> float:
    """Sends the ring's segments one by one, and returns when the last has arrived."""
    segment = size / num_devices / segments
    taken = network.gap + segment / network.bandwidth
    flight = network.latency - network.gap
    ready: dict[tuple[int, int, int], float] = {}
    free = [0.0] * num_devices
    for _, sender, receiver, chunk, reduces in ring(num_devices).transfers:
        for k in range(segments):
            start = max(free[sender], ready.get((sender, chunk, k), 0.0))
            free[sender] = start + taken
            added = segment * network.seconds_per_reduced_byte if reduces else 0.0
            ready[receiver, chunk, k] = start + taken + flight + added
    return max(ready.values(), default=0.0)


def test_every_schedule_has_a_cost():
    assert list(COSTS) == list(SCHEDULES)


@pytest.mark.parametrize("name", COSTS)
def test_formulas_are_what_is_counted(name):
    for num_devices in range(1, 18):
        found = counted(build(name, num_devices))
        assert COSTS[name](num_devices) == found, num_devices
        assert found.busiest_link >= cost.lower_bound(num_devices)


def test_the_rings_load_does_not_grow_with_the_devices():
    loads = [cost.ring(n).busiest_link for n in (2, 4, 8, 1000)]
    assert loads == [1, Fraction(3, 2), Fraction(7, 4), Fraction(1998, 1000)]
    assert loads == [cost.lower_bound(n) for n in (2, 4, 8, 1000)]
    assert cost.reduce_then_broadcast(1000).busiest_link == 999


def test_seconds_by_hand():
    network = Network(
        latency=1.0,
        bandwidth=10.0,
        seconds_per_reduced_byte=0.01,
        seconds_per_message=0.25,
    )
    by_hand = {
        "ring": 6 * 1 + 150 / 10 + 75 * 0.01,
        "reduce_then_broadcast": 2 * 1 + 4 * 0.25 + 600 / 10 + 300 * 0.01,
        "tree": 4 * 1 + 400 / 10 + 200 * 0.01,
        "all_to_all": 2 * 1 + 4 * 0.25 + 150 / 10 + 75 * 0.01,
        "halving_doubling": 4 * 1 + 150 / 10 + 75 * 0.01,
    }
    for name, seconds in by_hand.items():
        assert COSTS[name](4).seconds(100, network) == pytest.approx(seconds)
        if name != "ring":
            assert choice.seconds(name, 100, 4, network) == pytest.approx(seconds)


def test_an_interface_has_one_message_at_a_time_unless_told():
    assert Network(1e-3, 25e6, 0.0).gap == 1e-3
    assert Network(1e-3, 25e6, 0.0, 0.0).gap == 0.0


@settings(max_examples=100)
@given(networks, sizes, st.integers(1, 9), st.integers(1, 9))
def test_the_pipeline_is_what_its_segments_do(network, size, num_devices, count):
    formula = choice.pipelined_ring_seconds(size, num_devices, network, count)
    assert formula == pytest.approx(
        pipelined(num_devices, network, size, count), rel=1e-9, abs=1e-15
    )
    if count == 1:
        plain = cost.ring(num_devices).seconds(size, network)
        assert formula == pytest.approx(plain, rel=1e-9, abs=1e-15)


@settings(max_examples=100)
@given(networks, sizes, st.integers(1, 40))
def test_the_ring_is_timed_in_the_segments_that_are_executed(network, size, n):
    executed = tfdist.RingAllReduce(network=network).segments_of_chunk(size / n, HOSTS)
    expected = choice.pipelined_ring_seconds(size, n, network, executed)
    assert choice.seconds("ring", size, n, network) == expected


def test_segments_hide_latency_and_addition_but_not_for_small_tensors():
    def gain(size, network):
        chunks = choice.segments_of(size / 4, network.bandwidth)
        whole = choice.pipelined_ring_seconds(size, 4, network, 1)
        return whole / choice.pipelined_ring_seconds(size, 4, network, chunks)

    assert gain(1_000, SLOW) == 1
    assert 1 < gain(25 * MB, SLOW) < 1.01
    adds_slowly = Network(1e-3, 25e6, 1e-7, 1e-4)
    assert gain(25 * MB, adds_slowly) > 2


@settings(max_examples=100)
@given(networks, sizes, st.integers(1, 40))
def test_the_first_of_nearly_the_least_time_is_chosen(network, size, num_devices):
    times = {name: choice.seconds(name, size, num_devices, network) for name in COSTS}
    chosen = choice.choose(size, num_devices, network)
    allowed = choice.NEARLY * min(times.values())
    assert chosen == next(name for name in choice.PREFERRED if times[name] <= allowed)
    assert sorted(choice.PREFERRED) == sorted(COSTS)


def test_where_processors_are_shared_the_fewest_messages_win():
    shared = Network(2e-4, 125e6, 2e-10, 2e-5, processor_seconds_per_message=1e-3)
    assert choice.seconds("ring", 0, 4, shared) == pytest.approx(24e-3)
    assert choice.seconds("all_to_all", 0, 4, shared) == pytest.approx(24e-3)
    assert choice.seconds("halving_doubling", 0, 4, shared) == pytest.approx(16e-3)
    assert choice.seconds("reduce_then_broadcast", 0, 4, shared) == pytest.approx(6e-3)
    assert choice.seconds("tree", 0, 4, shared) == pytest.approx(6e-3)
    # Twice as many segments are twice as many messages.
    assert choice.pipelined_ring_seconds(0, 4, shared, 2) == pytest.approx(48e-3)
    own = Network(2e-4, 125e6, 2e-10, 2e-5)
    for size in (25 * MB, 100 * MB):
        assert choice.seconds("ring", size, 4, shared) == pytest.approx(
            choice.seconds("ring", size, 4, own), rel=0.01
        )
    sizes = (4_000, 300_000, 700_000, 25 * MB)
    assert [choice.choose(size, 4, shared) for size in sizes] == [
        *("reduce_then_broadcast", "tree", "halving_doubling", "ring")
    ]


@settings(max_examples=100)
@given(networks, st.floats(0, 1e-3), st.floats(0, 1e-8), sizes, st.integers(2, 40))
def test_nothing_that_keeps_shared_processors_longer_is_chosen(
    network, of_message, of_byte, size, n
):
    shared = dataclasses.replace(
        network,
        processor_seconds_per_message=of_message,
        processor_seconds_per_byte=of_byte,
    )
    times = {name: choice.seconds(name, size, n, shared) for name in COSTS}
    chosen = choice.choose(size, n, shared)
    busy = COSTS[chosen](n).processor_seconds(size, shared)
    assert busy <= min(times.values())
    assert times[chosen] <= choice.NEARLY * min(times.values())


def test_where_the_processors_are_slower_than_the_links_the_fewest_messages_win():
    links = Network(2e-4, 1e9, 2e-10, 2e-5, processor_seconds_per_message=1e-4)
    assert choice.choose(25 * MB, 4, links) == "ring"
    shared = dataclasses.replace(links, processor_seconds_per_byte=1e-9)
    # All move 150 MB. The ring sends 24 messages in 3 segments each, the star 6.
    assert choice.seconds("ring", 25 * MB, 4, shared) == pytest.approx(0.1572)
    assert choice.seconds("reduce_then_broadcast", 25 * MB, 4, shared) > 0.1506
    assert choice.choose(4 * MB, 4, shared) == "tree"


@pytest.mark.parametrize(
    ("size", "num_devices", "chosen"),
    [
        (4_000, 4, "all_to_all"),
        (4_000, 64, "tree"),
        (1 * MB, 64, "halving_doubling"),
        (100 * MB, 4, "ring"),
        (100 * MB, 6, "ring"),
        (100 * MB, 17, "ring"),
    ],
)
def test_latency_rules_for_small_tensors_and_bandwidth_for_large(
    size, num_devices, chosen
):
    assert choice.choose(size, num_devices, SLOW) == chosen


@pytest.mark.parametrize("size", [0, 3 * MB])
def test_the_ring_is_chosen_where_others_are_as_fast(size):
    network = Network(1e-3, 125e6, 2e-10)
    assert choice.choose(size, 2, network) == "ring"
    assert choice.choose(size, 1, network) == "ring"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"latency": -1.0}, "latency must be at least 0 s, not -1.0"),
        ({"bandwidth": 0.0}, "bandwidth must be above 0 bytes/s, not 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth must be above 0 bytes/s, not nan"),
        (
            {"seconds_per_reduced_byte": -1.0},
            "seconds_per_reduced_byte must be at least 0",
        ),
        (
            {"processor_seconds_per_message": -1.0},
            "processor_seconds_per_message must be",
        ),
        ({"processor_seconds_per_byte": -1.0}, "processor_seconds_per_byte must be"),
        ({"seconds_per_message": 2.0}, "between 0 and the latency, 1.0 s, not 2.0"),
    ],
)
def test_networks_that_cannot_be_are_refused(wrong, message):
    right = {"latency": 1.0, "bandwidth": 1.0, "seconds_per_reduced_byte": 0.0}
    with pytest.raises(CostError, match=message):
        Network(**{**right, **wrong})


def test_wrong_numbers_are_refused():
    for name, formulas in COSTS.items():
        with pytest.raises(ScheduleError, match="at least 1 device"):
            formulas(0)
        with pytest.raises(CostError, match="at least 0 bytes, not -1"):
            choice.seconds(name, -1, 4, SLOW)
    with pytest.raises(ScheduleError, match="'star': choose one of 'ring', "):
        choice.seconds("star", 1, 4, SLOW)
    with pytest.raises(ScheduleError, match="at least 1 device"):
        choice.choose(1, 0, SLOW)
    with pytest.raises(CostError, match="at least 1 segment, not 0"):
        choice.pipelined_ring_seconds(1, 4, SLOW, 0)


@pytest.fixture
def algorithms(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("all_reduce_algorithms")


def test_a_plot_keeps_what_it_shows(algorithms, tmp_path):
    pytest.importorskip("matplotlib")
    plot = dataclasses.replace(algorithms.plot(SLOW), path=tmp_path / "plot.png")
    plot.write()
    assert plot.path.read_bytes().startswith(b"\x89PNG")
    assert plot.is_current()


def run(algorithms, *argv):
    options = flags.FlagValues()
    algorithms.define_flags(options)
    options(["all_reduce_algorithms.py", *argv])
    return algorithms.main(options)


def test_the_benchmark_checks_prints_and_refuses(algorithms, capsys):
    assert run(algorithms, "--check") == 0
    assert run(algorithms, "--check", "--bandwidth=1e6") == 1
    assert capsys.readouterr().err.splitlines() == [
        "algorithms.md is outdated",
        "all_reduce_algorithms.png is outdated",
    ]
    assert run(algorithms, "--latency=0.25") == 0
    assert "latency 250 ms" in capsys.readouterr().out
    assert run(algorithms, "--latency=1e-6") == 1
    assert "must be between 0 and the latency, 1e-06 s" in capsys.readouterr().err
