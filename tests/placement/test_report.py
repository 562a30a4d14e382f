import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist import PlacedVariable, PlacementReport, VariableSpec, WorkerReport
from tfdist.placement.link_use import LinkUse, Traffic


def placed(name: str, elements: int, ps: int) -> PlacedVariable:
    return PlacedVariable(VariableSpec(name, (elements,), "float32", 4), ps)


def test_bytes_and_imbalance_count_every_ps():
    report = PlacementReport(3, (placed("a", 100, 0), placed("b", 50, 2)))
    assert report.bytes_per_ps == (400, 0, 200)
    assert report.imbalance == 2.0
    assert [spec.name for spec in report.on(0)] == ["a"]


def test_nothing_placed_is_balanced():
    assert PlacementReport(2, ()).imbalance == 1.0


def test_the_table_shows_every_variable_and_the_total_of_each_ps():
    text = str(PlacementReport(2, (placed("cnn/kernel", 300, 0), placed("b", 1, 1))))
    row = next(line for line in text.splitlines() if "cnn/kernel" in line)
    assert row.split()[1:-1:2] == ["0", "cnn/kernel", "300", "float32", "1,200"]
    assert "1 variables" in text
    assert "fullest ps / mean: 1.993" in text


def kernel(rows, ps):
    return PlacedVariable(VariableSpec(f"kernel_{ps}", (rows, 256), "float32", 4), ps)


def test_one_large_variable_on_one_ps_is_to_be_split():
    report = PlacementReport(3, (kernel(784, 1), kernel(2, 0)))
    assert str(report).splitlines()[-1] == (
        "kernel_1 is large, and on ps 1 alone: ParameterServerStrategy(variable_partitioner="
        "tfdist.MinSizePartitioner(262144, max_shards=3)) splits such weights"
    )


@pytest.mark.parametrize(
    "placed", [(), (kernel(784, 0), kernel(700, 1)), (kernel(500, 1),)]
)
def test_what_is_even_or_small_needs_no_advice(placed):
    assert PlacementReport(2, placed).advice == ""


def test_a_long_name_is_not_cut():
    name = "/".join(["encoder"] * 20)
    assert name in str(PlacementReport(1, (placed(name, 1, 0),)))


def test_workers_steps_add_up():
    text = str(WorkerReport((30, 10)))
    assert "75%" in text
    assert "40" in text
    assert "-" in str(WorkerReport((0, 0)))


@pytest.mark.parametrize(
    ("steps", "stragglers"),
    [
        ((), ()),
        ((0, 0), ()),
        ((100,), ()),
        ((98, 103, 9, 100), (2,)),
        ((100, 50, 100), ()),
        ((100, 49, 100), (1,)),
        ((85, 15), (1,)),
        ((9, 9, 0), ()),
        ((10, 10, 0), (2,)),
    ],
)
def test_a_straggler_has_less_than_half_the_median_workers_steps(steps, stragglers):
    report = WorkerReport(steps)
    assert report.stragglers == stragglers
    assert str(report).count("straggler: ") == len(stragglers)


@given(st.lists(st.integers(0, 10**6)).map(tuple))
def test_stragglers_are_few_and_slower_than_all_others(steps):
    stragglers = WorkerReport(steps).stragglers
    assert 2 * len(stragglers) <= len(steps)
    slow = [steps[worker] for worker in stragglers]
    rest = [n for worker, n in enumerate(steps) if worker not in stragglers]
    assert not slow or max(slow) < min(rest)
    assert all(2 * n < statistics.median(steps) for n in slow)


def test_a_straggler_is_named_with_its_steps():
    line = next(
        line
        for line in str(WorkerReport((100, 103, 97, 10))).splitlines()
        if "straggler" in line
    )
    assert line.split()[1:4:2] == ["3", "10"]
    assert "10% of the median worker's" in line


SLOW = Traffic(pulled=1e6, pushed=1e6, segments=2, seconds_per_byte=4e-8)


def test_waiting_for_a_link_is_named_with_what_would_take_less():
    waits = (
        "a step took 80.0 ms. By the rate of its link, a worker waits up to 25% of it for "
        "weights and 50% for its gradients to arrive"
    )
    both = LinkUse(SLOW, 0.08, may_narrow=True, may_merge=True)
    assert str(WorkerReport((30, 10), both)).splitlines()[-1] == (
        f'{waits}: wire_dtype="bfloat16" would take off up to 38%, '
        "exchange=tfdist.ExchangeEvery(5) would take off up to 60%"
    )
    assert str(replace(both, may_narrow=False, may_merge=False)) == waits
    for traffic in (
        replace(SLOW, seconds_per_byte=0.0),
        replace(SLOW, pulled=0, pushed=1),
    ):
        assert str(WorkerReport((30, 10), LinkUse(traffic, 0.08))).endswith("╯")


@pytest.mark.parametrize("use", [LinkUse(SLOW, 0.01), LinkUse(SLOW, 1e-9)])
def test_nobody_waits_for_longer_than_a_step(use):
    assert 0 <= use.weights <= 1
    assert 0 <= use.gradients <= 1


def test_what_was_run_since_a_report():
    before, after = WorkerReport((100, 60, 5)), WorkerReport((130, 20, 5))
    assert after.since(before) == WorkerReport((30, 20, 0))
