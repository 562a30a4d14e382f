"""The cost formulas match the schedules and the numbers on the page."""

import dataclasses
from collections import Counter
from fractions import Fraction

import pytest
from absl import flags

from tfdist.all_reduce import cost
from tfdist.all_reduce.cost import COSTS, Cost, CostError, Network
from tfdist.all_reduce.schedule import SCHEDULES, ScheduleError, TransferSchedule, build

from ..support.raising import raises

MB = 1_000_000
# 200 Mbit/s, and messages that follow each other faster than they arrive.
SLOW = Network(1e-3, 25e6, 2e-10, 1e-4)


def counted(schedule: TransferSchedule) -> Cost:
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


def test_an_interface_has_one_message_at_a_time_unless_told():
    assert Network(1e-3, 25e6, 0.0).gap == 1e-3
    assert Network(1e-3, 25e6, 0.0, 0.0).gap == 0.0


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
        ({"seconds_per_message": 2.0}, "between 0 and the latency, 1.0 s, not 2.0"),
    ],
)
def test_networks_that_cannot_be_are_refused(wrong, message):
    right = {"latency": 1.0, "bandwidth": 1.0, "seconds_per_reduced_byte": 0.0}
    with pytest.raises(CostError, match=message):
        Network(**{**right, **wrong})


@pytest.mark.parametrize("formulas", COSTS.values())
def test_wrong_numbers_are_refused(formulas):
    with raises(ScheduleError, "1 device"):
        formulas(0)
    with raises(CostError, "bytes", "-1"):
        formulas(4).seconds(-1, SLOW)


@pytest.mark.parametrize(
    ("size", "num_devices", "fastest"),
    [(4_000, 4, "all_to_all"), (4_000, 64, "halving_doubling"), (100 * MB, 17, "ring")],
)
def test_latency_rules_for_small_tensors_and_bandwidth_for_large(
    size, num_devices, fastest
):
    times = {name: COSTS[name](num_devices).seconds(size, SLOW) for name in COSTS}
    assert times[fastest] == pytest.approx(min(times.values()), rel=0.05)


@pytest.fixture
def algorithms(benchmark):
    return benchmark("all_reduce_algorithms")


@pytest.mark.not_in_gate
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
