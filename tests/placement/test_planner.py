import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist import PlacedVariable, PlacementReport, VariableSpec
from tfdist.placement.greedy import GreedyLoadBalancing
from tfdist.placement.partition import Partition
from tfdist.planning.file import PlanFileError
from tfdist.planning.plan import Plan
from tfdist.planning.planned import PlanMismatchError, Planned
from tfdist.planning.planner import plan_variables
from tfdist.planning.weight import Weight

from ..support.raising import raises


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
        ([8], 4, 4.0),
    ],
)
def test_the_bound_without_splits(rows, num_ps, unsplit):
    plan = plan_variables(of_sizes(rows), num_ps)
    assert plan.unsplit_bound == pytest.approx(unsplit)
    assert plan.bound == 1.0


@pytest.mark.parametrize(
    ("rows", "num_ps", "cuts", "imbalance"),
    [
        # Even without a cut.
        ([500, 300, 200, 500, 500], 2, 0, 1.0),
        # Within the target, so that nothing is cut to be more even.
        ([1015, 985], 2, 0, 1.015),
        # After the small ones, the remainder of 20,000 would have to be cut again.
        ([12_000, 20_000, 2_000, 2_000, 12_000], 3, 1, 1.0),
        ([1_000_000, 10, 10], 4, 3, 1.0),
    ],
)
def test_cuts_are_as_few_and_as_even_as_can_be(rows, num_ps, cuts, imbalance):
    plan = plan_variables(of_sizes(rows), num_ps)
    assert plan.cuts == cuts
    assert plan.imbalance == pytest.approx(imbalance, abs=0.001 if cuts else 1e-9)


def test_slots_follow_their_weight():
    plan = plan_variables([weight(100, slots=2), weight(300)], 2)
    assert plan.bytes_per_ps == (1200, 1200)
    assert plan.cuts == 0


def test_what_is_looked_up_is_cut_by_rows_alone():
    few_rows = plan_variables([weight(3, 512, rows_only=True), weight(512)], 2)
    assert few_rows.variables[0].partition.sizes == (2, 1)
    assert few_rows.variables[0].partition.axis == 0
    assert few_rows.imbalance == 1.0
    one_row = plan_variables([weight(1, 512, rows_only=True)], 2)
    assert (one_row.cuts, one_row.imbalance, one_row.bound) == (0, 2.0, 2.0)


@given(rows=sizes, dealt=st.integers(1, 10_000), num_ps=cluster)
def test_what_is_dealt_out_has_even_shards(rows, dealt, num_ps):
    table = weight(dealt, name="table", dealt=True)
    plan = plan_variables([table, *of_sizes(rows)], num_ps)
    mean = 4 * (sum(rows) + dealt) / num_ps
    partition = plan.variables[0].partition
    if partition is None:
        assert num_ps == 1 or dealt == 1 or 4 * dealt <= 0.005 * mean + 1e-9
    else:
        assert list(partition.sizes) == [
            len(range(i, dealt, len(partition.sizes)))
            for i in range(len(partition.sizes))
        ]
        assert len(partition.sizes) == len({*partition.ps}) == min(num_ps, dealt)
    # One row more of what is dealt out, and one of what is cut.
    assert max(plan.bytes_per_ps) <= 1.02 * mean + 8
    assert plan.bound - 1e-9 <= plan.imbalance


@pytest.mark.parametrize("balance", ["memory", "traffic", "both"])
def test_the_others_make_up_for_what_is_dealt_out_unevenly(balance):
    tables = [weight(3, 1000, name=f"t{i}", dealt=True) for i in range(3)]
    plan = plan_variables([*tables, weight(3000)], 2, balance=balance)
    assert plan.imbalance <= 1.02
    assert plan.traffic_imbalance <= 1.02
    assert [v.partition.sizes for v in plan.variables[:3]] == [(2, 1)] * 3
    assert "0 [0::2], 1 [1::2]" in plan.table()


def test_the_bound_knows_whole_rows():
    plan = plan_variables([weight(3, 100, rows_only=True)], 2)
    assert plan.bound == plan.imbalance == pytest.approx(4 / 3)


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
        ({"num_ps": 0}, "num_ps must be .* received 0"),
        ({"num_ps": True}, "received True"),
        ({"num_ps": 2.0}, "received 2.0"),
        ({"balance": "speed"}, "balance must be .*; received 'speed'"),
        ({"target": 1.0}, "target must be an imbalance above 1"),
        ({"target": math.inf}, "target must be an imbalance above 1"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        plan_variables([weight(1)], **{"num_ps": 2, **kwargs})


@given(sizes, cluster)
def test_a_plan_survives_json(rows, num_ps):
    weights = of_sizes(rows, slots=2)
    weights.append(weight(5, lookups=3, divisible=False))
    weights.append(weight(5, 9, rows_only=True))
    weights.append(weight(500, 9, dealt=True))
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
    ("text", "message"),
    [
        ("", "not a plan"),
        ("[]", "not a plan"),
        ('{"num_ps": 2}', "not a plan .*'version' is missing"),
        (broken(version=2), "version 2.*reads version 1"),
        (broken(version="1"), "'version' is a whole number.* received '1'"),
        (broken(num_ps="2"), "'num_ps' is a whole number, at least 1; received '2'"),
        (broken(num_ps=0), "'num_ps' .* received 0"),
        (broken(num_ps=True), "received True"),
        (broken(target=1), "'target' is a number above 1; received 1"),
        (broken(balance="speed"), "'balance' is one of .* received 'speed'"),
        (broken(balance=[]), r"'balance' is one of .* received \[\]"),
        (broken(variables=[]), "at least one variable"),
        (broken(variables=None), "'variables' is a list; received None"),
        (broken(variables=[5]), "'variable' is an object; received 5"),
        (broken(row={"ps": 2}), "has 2 ps and puts v on ps 2"),
        (broken(row={"ps": -1}), "on ps -1"),
        (broken(row={"ps": 0.0}), "'ps' is a whole number; received 0.0"),
        (broken(row={}), "the variable v: 'ps' is missing"),
        (broken(row={"ps": 0, "name": None}), "'name' is a text; received None"),
        (broken(row={"ps": 0, "itemsize": -5}), "v: 'itemsize' is .* received -5"),
        (broken(row={"ps": 0, "slots": "x"}), "v: 'slots' is a list; received 'x'"),
        (broken(row={"ps": 0, "slots": [1]}), "v: 'slots' is a text; received 1"),
        (broken(row={"ps": 0, "dtype": 5}), "v: 'dtype' is a text; received 5"),
        (broken(row={"ps": 0, "shape": [-9]}), "v: 'shape' is .* received -9"),
        (broken(row={"ps": 0, "dealt": 1}), "v: 'dealt' is true or false; received 1"),
        (broken(row={"axis": 0, "shards": [[0, 9]]}), "a list of ps, start and stop"),
        (
            broken(row={"axis": 0, "shards": [[0, 0, 5], [1, 5, 8]]}),
            "add up to 8 along axis 0, which is 9",
        ),
    ],
)
def test_what_is_no_plan_is_refused(text, message, tmp_path):
    assert Plan.from_json(broken()).bytes_per_ps == (9, 0)
    with pytest.raises(PlanFileError, match=message):
        Plan.from_json(text)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanFileError, match=rf"(?s)plan\.json: .*{message}"):
        Plan.load(tmp_path / "plan.json")


def test_a_file_that_is_no_text_is_no_plan(tmp_path):
    path = tmp_path / "plan.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with raises(PlanFileError, "plan.png", "not text"):
        Plan.load(path)


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


def test_a_plan_is_drawn_as_png_alone(tmp_path):
    for name in ("x.foo", "x.svg", "plan"):
        with pytest.raises(ValueError, match=rf"pictures are PNG files.*{name}"):
            plan_variables(of_sizes([1000, 10]), 3).plot(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


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
    with raises(ValueError, "2 ps", "3"):
        plan.receipt(report(1, 1, 1))
    with raises(TypeError, "placement_report()", "received 'x'"):
        plan.receipt("x")


class Variable:
    """Stands for one that was created; only whether it is in use counts."""


def create(placement: Planned, spec: VariableSpec, num_ps: int = 2):
    """Where a variable is put, and the variable."""
    home = placement.partition(spec, num_ps)
    if home is None:
        home = placement.place(spec, num_ps)
    variable = Variable()
    placement.created(spec, variable)
    return home, variable


def follow(placement: Planned, specs, num_ps: int):
    return [create(placement, spec, num_ps)[0] for spec in specs]


def test_planned_puts_variables_where_the_plan_says():
    plan = plan_variables([weight(1000, name="a"), weight(10, name="b/bias")], 2)
    placement = Planned(plan)
    specs = [v.spec for v in plan.variables]
    assert follow(placement, specs, 2) == [v.home for v in plan.variables]
    assert isinstance(plan.variables[0].home, Partition)
    placement.check_complete()
    # A second model, the same.
    assert follow(placement, specs, 2) == [v.home for v in plan.variables]


def homes_of(plan: Plan, names) -> list:
    shapes = [v.spec.shape for v in plan.variables]
    specs = [weight(*s, name=n).spec for s, n in zip(shapes, names, strict=True)]
    return follow(Planned(plan), specs, plan.num_ps)


@pytest.mark.parametrize(
    ("planned", "asked"),
    [
        # Numbers of Keras do not count.
        (
            ["dense/kernel", "dense_1/kernel", "conv1/kernel", "seed"],
            ["dense_7/kernel", "dense_8/kernel", "conv1/kernel", "seed_3"],
        ),
        # One path twice: in its order.
        (["m/v", "m/v"], ["m/v", "m/v"]),
    ],
)
def test_names_are_matched_in_their_order(planned, asked):
    count = len(planned)
    plan = plan_variables(
        [weight(10 + i, name=n) for i, n in enumerate(planned)], count
    )
    placed = homes_of(plan, asked)
    assert placed == [v.home for v in plan.variables]
    assert len(set(placed)) == count


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
    _, kept = create(placement, weight(9, name="a/kernel").spec)
    with raises(PlanMismatchError, "missing: ", "b/kernel", "1 of 2"):
        placement.check_complete()
    placement.restart()
    placement.check_complete()
    assert kept is not None


def test_what_is_there_more_often_than_planned_is_named():
    placement = planned()
    specs = [weight(9, name="a/kernel").spec, weight(8, name="b/kernel").spec]
    _, first = create(placement, specs[0])
    again, second = create(placement, specs[0])
    assert again == placement.plan.variables[0].home
    _, last = create(placement, specs[1])
    with raises(PlanMismatchError, "extra: a/kernel", "Planned.restart"):
        placement.check_complete()
    # What Keras makes to throw away is not there by the first step.
    del first
    placement.check_complete()
    assert second is not last


def test_what_is_not_used_any_more_does_not_begin_a_model():
    placement = planned()
    follow(placement, [v.spec for v in placement.plan.variables], 2)
    create(placement, weight(9, name="a/kernel").spec)
    placement.check_complete()


NAMES = ["model/inner/dense/kernel", "model/inner/dense/bias", "model/dense_1/kernel"]


@pytest.mark.parametrize(
    "names",
    [
        ["dense/kernel", "dense/bias", "dense_1/kernel"],
        ["inner/dense_4/kernel", "dense_4/bias", "dense_5/kernel"],
        [
            "all/model/inner/dense/kernel",
            "model/inner/dense/bias",
            "all/model/dense/kernel",
        ],
    ],
)
def test_a_path_may_begin_otherwise_as_of_a_model_that_is_loaded(names):
    shapes = [(50, 7), (7,), (7, 60)]
    weights = [weight(*s, name=n) for s, n in zip(shapes, NAMES, strict=True)]
    plan = plan_variables(weights, 3)
    assert homes_of(plan, names) == [v.home for v in plan.variables]


def test_the_whole_path_goes_before_the_end_of_it():
    plan = plan_variables(
        [weight(9, name="outer/dense/kernel"), weight(9, name="dense/kernel")], 2
    )
    names = ["dense/kernel", "outer/dense/kernel"]
    assert homes_of(plan, names) == [v.home for v in reversed(plan.variables)]


def test_of_the_same_end_and_size_the_first_is_the_first_planned():
    plan = plan_variables([weight(9, name=f"m{i}/kernel") for i in "abc"], 3)
    assert homes_of(plan, ["kernel"] * 3) == [v.home for v in plan.variables]


def test_the_optimizer_that_keras_looks_at_is_no_difference():
    weights = [weight(name="adam/iteration"), weight(name="adam/learning_rate")]
    placement = Planned(plan_variables(weights, 2))
    kept = [create(placement, each.spec) for each in weights]
    for name in ("optimizer_1/iteration", "optimizer_1/learning_rate"):
        create(placement, weight(name=name).spec)
    placement.check_complete()
    with raises(PlanMismatchError, "extra: ", "SGD/iteration"):
        create(placement, weight(name="SGD/iteration").spec)
    assert len(kept) == 2


def test_slots_are_those_of_the_plan():
    slots = ("adam/a_dense_kernel_momentum", "adam/a_dense_kernel_velocity")
    spec = weight(9, name="a/dense/kernel").spec
    placement = Planned(plan_variables([Weight(spec, slots)], 2))
    _, kernel = create(placement, weight(9, name="dense_1/kernel").spec)

    def slot(kind):
        name = f"adam_1/dense_1_kernel_{kind}"
        placement.check_slot(weight(9, name=name).spec, kernel)

    slot("momentum")
    with raises(PlanMismatchError, "missing slot: ", "velocity of dense_1"):
        placement.check_complete([kernel])
    slot("velocity")
    placement.check_complete([kernel])
    with pytest.raises(PlanMismatchError) as caught:
        slot("velocity_hat")
    words = str(caught.value)
    assert "no velocity_hat of dense_1/kernel" in words
    assert "it has momentum, velocity" in words
    assert "restart" not in words
    placement.check_slot(weight(9, name="x/y_z").spec, Variable())


def test_what_the_plan_splits_is_not_placed_whole():
    plan = plan_variables([weight(1000, name="a")], 2)
    with raises(PlanMismatchError, "Keras variable"):
        Planned(plan).place(weight(1000, name="a").spec, 2)


def test_planned_takes_a_plan():
    with raises(TypeError, "Planned"):
        Planned("plan.json")
