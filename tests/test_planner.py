import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist import PlacedVariable, PlacementReport, VariableSpec
from tfdist.parameter_server.partition import Partition, PartitionError
from tfdist.parameter_server.placement import GreedyLoadBalancing
from tfdist.parameter_server.plan import Plan, Weight
from tfdist.parameter_server.plan_file import PlanFileError
from tfdist.parameter_server.planned import PlanMismatchError, Planned
from tfdist.parameter_server.planner import plan_variables


def weight(*shape: int, name: str = "v", slots: int = 0, **kwargs) -> Weight:
    names = tuple(f"{name}_slot_{i}" for i in range(slots))
    return Weight(VariableSpec(name, shape, "float32", 4), names, **kwargs)


def of_sizes(sizes, **kwargs) -> list[Weight]:
    return [weight(size, name=f"v{i}", **kwargs) for i, size in enumerate(sizes)]


sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=60)
cluster = st.integers(1, 9)


@given(sizes, cluster)
def test_every_index_lives_on_one_ps(rows, num_ps):
    plan = plan_variables(of_sizes(rows, slots=1), num_ps)
    assert [v.spec.shape for v in plan.variables] == [(n,) for n in rows]
    assert sum(plan.bytes_per_ps) == 8 * sum(rows)
    for each in plan.variables:
        assert sum(share for _, share in each.shares()) == pytest.approx(1)
        assert {ps for ps, _ in each.shares()} <= set(range(num_ps))
        if each.partition is not None:
            each.partition.check(each.spec, num_ps)


@given(sizes, cluster, st.sampled_from([1.001, 1.02, 1.2]))
def test_the_target_is_reached_up_to_a_row(rows, num_ps, target):
    plan = plan_variables(of_sizes(rows), num_ps, target=target)
    mean = 4 * sum(rows) / num_ps
    assert max(plan.bytes_per_ps) <= target * mean + 4


@given(sizes, cluster)
def test_there_are_fewer_cuts_than_ps(rows, num_ps):
    # Rows of a byte in a million: a ps that is cut to is full.
    plan = plan_variables(of_sizes([1_000_000 * n for n in rows]), num_ps)
    assert plan.cuts <= num_ps - 1
    assert plan.imbalance <= 1.02


@given(sizes, cluster)
def test_unsplit_it_keeps_grahams_bound(rows, num_ps):
    plan = plan_variables(of_sizes(rows, divisible=False), num_ps)
    assert plan.cuts == 0
    graham = 4 / 3 - 1 / (3 * num_ps)
    assert plan.imbalance >= plan.bound - 1e-9
    assert plan.unsplit_bound == pytest.approx(plan.bound) or (
        plan.unsplit_bound > plan.bound
    )
    # Of the least possible, which is at most what greedy reaches.
    greedy, loads = GreedyLoadBalancing(), [0] * num_ps
    for n in sorted(rows, reverse=True):
        loads[greedy.place(VariableSpec("v", (n,), "float32", 4), num_ps)] += 4 * n
    assert max(plan.bytes_per_ps) <= graham * max(loads)


@given(sizes, cluster)
def test_the_bounds_are_below_what_is_reached(rows, num_ps):
    split = plan_variables(of_sizes(rows), num_ps)
    whole = plan_variables(of_sizes(rows, divisible=False), num_ps)
    assert 1 <= split.bound <= split.imbalance + 1e-9
    assert whole.unsplit_bound <= whole.imbalance + 1e-9


@pytest.mark.parametrize(
    ("rows", "num_ps", "unsplit"),
    [
        ([30, 30, 30], 2, 4 / 3),
        ([90, 5, 5], 2, 1.8),
        ([50, 50], 2, 1.0),
        ([7], 4, 4.0),
    ],
)
def test_the_bound_without_splits(rows, num_ps, unsplit):
    plan = plan_variables(of_sizes(rows), num_ps)
    assert plan.unsplit_bound == pytest.approx(unsplit)
    assert plan.bound == 1.0


def test_what_is_even_without_a_cut_is_not_cut():
    plan = plan_variables(of_sizes([500, 300, 200, 500, 500]), 2)
    assert plan.cuts == 0
    assert plan.imbalance == 1.0


def test_what_is_within_the_target_is_not_cut_to_be_more_even():
    plan = plan_variables(of_sizes([1015, 985]), 2)
    assert plan.cuts == 0
    assert plan.imbalance == pytest.approx(1.015)


def test_what_remains_of_a_cut_takes_its_turn_by_size():
    # After the small ones, the remainder of 20,000 would have to be cut again.
    plan = plan_variables(of_sizes([12_000, 20_000, 2_000, 2_000, 12_000]), 3)
    assert plan.cuts == 1
    assert plan.imbalance <= 1.001


def test_a_cut_no_more_than_needed_is_as_even_as_it_can_be():
    plan = plan_variables(of_sizes([1_000_000, 10, 10]), 4)
    assert plan.cuts == 3
    assert plan.imbalance < 1.001


def test_slots_follow_their_weight():
    plan = plan_variables([weight(100, slots=2), weight(300)], 2)
    assert plan.bytes_per_ps == (1200, 1200)
    assert plan.cuts == 0


def test_rows_are_cut_unless_there_are_too_few():
    dense = plan_variables([weight(4096, 512)], 2).variables[0]
    assert dense.partition.axis == 0
    conv = plan_variables([weight(3, 3, 256, 512)], 2).variables[0]
    assert conv.partition.axis == 3
    assert conv.partition.sizes == (256, 256)


def test_what_cannot_be_cut_is_not():
    plan = plan_variables([weight(1000, divisible=False), weight(10), weight()], 2)
    assert plan.split == ()
    assert plan.imbalance == plan.bound == pytest.approx(4000 * 2 / 4044)
    assert plan_variables([weight(1, 1), weight()], 3).cuts == 0


def test_a_step_moves_a_dense_variable_whole_and_of_an_embedding_its_rows():
    assert weight(100, 8, slots=2).traffic == 2 * 3200
    assert weight(100, 8, lookups=10).traffic == 2 * 320
    assert weight(100, 8, lookups=1000).traffic == 2 * 3200


def dlrm() -> list[Weight]:
    tables = [
        weight(rows, 16, name=f"table_{i}", slots=2, lookups=2048)
        for i, rows in enumerate([10_000_000, 8_000_000, 2_000_000, 90_000, 5000, 900])
    ]
    dense = [(13, 512), (512, 256), (367, 512), (512,), (256, 64), (64, 1), (256,)]
    return tables + [
        weight(*shape, name=f"dense_{i}", slots=2) for i, shape in enumerate(dense)
    ]


@pytest.mark.parametrize("num_ps", [2, 4, 8, 16])
def test_memory_traffic_or_both_are_balanced(num_ps):
    memory, traffic, both = (
        plan_variables(dlrm(), num_ps, balance=each)
        for each in ("memory", "traffic", "both")
    )
    assert memory.imbalance <= 1.02
    assert memory.cuts < num_ps
    assert traffic.traffic_imbalance <= 1.02 < traffic.imbalance
    assert both.imbalance <= 1.02
    assert both.traffic_imbalance <= 1.02


def test_what_is_small_and_busy_goes_where_there_is_little_traffic():
    quiet = [weight(100_000 - 200 * i, 8, name=f"t{i}", lookups=10) for i in range(4)]
    busy = [weight(100, name=f"b{i}") for i in range(8)]
    plan = plan_variables(quiet + busy, 4)
    assert plan.traffic_imbalance == 1.0
    # By memory alone they would all join the last table, which is the smallest.
    assert sorted(v.home for v in plan.variables[4:]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_is_busy_keeps_to_the_target_of_memory():
    quiet = [weight(1000, name="q", slots=2, lookups=1)]
    busy = [weight(40, name=f"b{i}", divisible=False) for i in range(60)]
    plan = plan_variables(quiet + busy, 2)
    assert plan.imbalance <= 1.02


def test_ties_go_to_the_least_traffic():
    moves = [weight(100, name="a"), weight(100, name="b")]
    rests = [weight(100, name=n, lookups=1) for n in "cd"]
    plan = plan_variables(moves + rests, 2)
    assert plan.bytes_per_ps == (800, 800)
    assert plan.traffic_imbalance == 1.0


def test_nothing_to_place():
    plan = plan_variables([], 2)
    assert (plan.imbalance, plan.bound, plan.bytes_per_ps) == (1.0, 1.0, (0, 0))
    assert plan_variables([weight(0, 5), weight(0)], 2).imbalance == 1.0
    assert "0 variables" in str(plan)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_ps": 0}, "num_ps is .* received 0"),
        ({"num_ps": True}, "received True"),
        ({"num_ps": 2.0}, "received 2.0"),
        ({"balance": "speed"}, "balance is one of .*; received 'speed'"),
        ({"target": 1.0}, "target is an imbalance above 1"),
        ({"target": math.inf}, "target is an imbalance above 1"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        plan_variables([weight(1)], **{"num_ps": 2, **kwargs})


@given(sizes, cluster)
def test_a_plan_survives_json(rows, num_ps):
    weights = of_sizes(rows, slots=2)
    weights.append(weight(5, lookups=3, divisible=False))
    plan = plan_variables(weights, num_ps, balance="both")
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_survives_a_file(tmp_path):
    plan = plan_variables(of_sizes([1000, 10]), 3)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def broken(**changes) -> str:
    row = {"name": "v", "shape": [9], "dtype": "uint8", "itemsize": 1, "slots": []}
    data = {"version": 1, "num_ps": 2, "target": 1.02, "balance": "memory"}
    row |= changes.pop("row", {"ps": 0})
    return json.dumps({**data, "variables": [row], **changes})


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", PlanFileError, "not a plan"),
        ("[]", PlanFileError, "not a plan"),
        ('{"num_ps": 2}', PlanFileError, "not a plan .*'version'"),
        (broken(version=2), PlanFileError, "version 2.*reads version 1"),
        (broken(num_ps="two"), PlanFileError, "not a plan"),
        (broken(num_ps=0), PlanFileError, "0 ps"),
        (broken(balance="speed"), PlanFileError, "not a plan"),
        (broken(row={"ps": 2}), PlanFileError, "has 2 ps and puts v on ps 2"),
        (broken(row={"ps": -1}), PlanFileError, "on ps -1"),
        (broken(row={}), PlanFileError, "'ps'"),
        (
            broken(row={"axis": 0, "shards": [[0, 0, 5], [1, 5, 8]]}),
            PartitionError,
            "add up to 8 along axis 0, which is 9",
        ),
    ],
)
def test_what_is_no_plan_is_refused(text, error, message):
    assert Plan.from_json(broken()).bytes_per_ps == (9, 0)
    with pytest.raises(error, match=message):
        Plan.from_json(text)


def test_a_plan_shows_a_bar_a_ps_what_is_split_and_its_bounds():
    plan = plan_variables([weight(1000, 3, name="fc/kernel"), weight(9)], 2)
    text = str(plan)
    assert text.count("#" * 28) >= 2
    assert "fc/kernel" in text
    assert "0 [0, " in text
    assert f"{plan.imbalance:.4f} in memory (at best 1.0000; without splits" in text
    row = next(line for line in plan.table().splitlines() if "fc/kernel" in line)
    assert "1000 x 3" in row
    assert "12,000" in row


def test_a_plan_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plan_variables(of_sizes([1000, 10]), 3).plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def report(*bytes_on: int) -> PlacementReport:
    return PlacementReport(
        len(bytes_on),
        tuple(
            PlacedVariable(VariableSpec("v", (size,), "uint8", 1), ps)
            for ps, size in enumerate(bytes_on)
        ),
    )


def test_the_receipt_compares():
    plan = plan_variables(of_sizes([100, 100]), 2)
    assert plan.receipt(report(400, 400)).matches
    receipt = plan.receipt(report(300, 420))
    assert not receipt.matches
    assert "-100" in str(receipt)
    assert "+20" in str(receipt)
    assert "NOT as planned" in str(receipt)
    with pytest.raises(ValueError, match="plan is of 2 ps and the report of 3"):
        plan.receipt(report(1, 1, 1))


def follow(placement: Planned, specs, num_ps: int):
    homes = []
    for spec in specs:
        partition = placement.partition(spec, num_ps)
        homes.append(partition or placement.place(spec, num_ps))
    return homes


def test_planned_puts_variables_where_the_plan_says():
    plan = plan_variables([weight(1000, name="a"), weight(10, name="b/bias")], 2)
    placement = Planned(plan)
    specs = [v.spec for v in plan.variables]
    assert follow(placement, specs, 2) == [v.home for v in plan.variables]
    assert isinstance(plan.variables[0].home, Partition)
    placement.check_complete()
    # A second model, the same.
    assert follow(placement, specs, 2) == [v.home for v in plan.variables]


def test_names_that_keras_numbers_are_the_same():
    names = ["dense/kernel", "dense_1/kernel", "conv1/kernel", "seed"]
    plan = plan_variables([weight(10 + i, name=n) for i, n in enumerate(names)], 4)
    again = ["dense_7/kernel", "dense_8/kernel", "conv1/kernel", "seed_3"]
    specs = [weight(10 + i, name=n).spec for i, n in enumerate(again)]
    placed = follow(Planned(plan), specs, 4)
    assert placed == [v.home for v in plan.variables]
    assert len(set(placed)) == 4


def test_a_path_that_occurs_twice_is_placed_in_order():
    plan = plan_variables([weight(100, name="m/v"), weight(50, name="m/v")], 2)
    placed = follow(Planned(plan), [v.spec for v in plan.variables], 2)
    assert placed == [v.home for v in plan.variables]


def planned() -> Planned:
    weights = [weight(9, name="a/kernel"), weight(8, name="b/kernel")]
    return Planned(plan_variables(weights, 2))


@pytest.mark.parametrize(
    ("variable", "num_ps", "message"),
    [
        (VariableSpec("c/kernel", (9,), "float32", 4), 2, "extra: .* no c/kernel"),
        (VariableSpec("a/kernel", (8,), "float32", 4), 2, "other shape: a/kernel"),
        (VariableSpec("a/kernel", (9,), "bfloat16", 2), 2, "other dtype: a/kernel"),
        (VariableSpec("a/kernel", (9,), "float32", 4), 3, "for 2 ps .* has 3"),
    ],
)
def test_the_first_difference_is_named(variable, num_ps, message):
    for ask in (planned().place, planned().partition):
        with pytest.raises(PlanMismatchError, match=message):
            ask(variable, num_ps)


def test_what_is_missing_is_named():
    placement = planned()
    placement.check_complete()
    placement.place(weight(9, name="a/kernel").spec, 2)
    with pytest.raises(PlanMismatchError, match=r"missing: .* b/kernel .*1 of 2"):
        placement.check_complete()
    with pytest.raises(PlanMismatchError, match=r"extra: .*needs Planned.restart"):
        placement.place(weight(9, name="a/kernel").spec, 2)
    placement.restart()
    placement.check_complete()


def test_what_the_plan_splits_is_not_placed_whole():
    plan = plan_variables([weight(1000, name="a")], 2)
    with pytest.raises(PlanMismatchError, match="only a Keras variable"):
        Planned(plan).place(weight(1000, name="a").spec, 2)


def test_planned_takes_a_plan():
    with pytest.raises(TypeError, match=r"Planned takes a plan"):
        Planned("plan.json")
