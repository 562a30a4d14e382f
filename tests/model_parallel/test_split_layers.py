"""What can be split and how, and which layers a plan splits."""

import itertools
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdist
from tfdist.research import (
    Device,
    LayerEdge,
    LayerGraph,
    LayerMatrix,
    LayerNode,
    Links,
    Split,
)
from tfdist.research.model_parallel.choose_split import WHOLE
from tfdist.research.model_parallel.split_graph import resolved_split, with_parts
from tfdist.research.model_parallel.splitting import dense, embedding
from tfdist.research.model_parallel.splitting.split import ranges, resolved
from tfdist.research.model_parallel.work import Work

from ..support.raising import raises

layers = keras.layers


@given(st.integers(1, 50), st.integers(2, 60))
def test_ranges_cover_everything_evenly(length, parts):
    found = ranges(length, parts)
    assert [i for start, end in found for i in range(start, end)] == list(range(length))
    sizes = [end - start for start, end in found]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 9), st.booleans())
def test_the_split_that_is_chosen_moves_fewest_bytes(rows, columns, parts, is_lookup):
    moved = {
        "columns": (parts - 1) * (1 if is_lookup else rows)
        + (parts - 1) / parts * columns,
        "rows": (parts - 1) * columns
        + (parts - 1) * (1 if is_lookup else rows / parts),
    }
    possible = [
        by for by, length in (("columns", columns), ("rows", rows)) if length >= parts
    ]
    matrix = LayerMatrix(rows, columns, is_lookup)
    if not possible:
        with pytest.raises(
            tfdist.research.SplitError, match=f"{rows} rows and {columns}"
        ):
            resolved(Split(parts), matrix)
        return
    found = resolved(Split(parts), matrix).by
    assert moved[found] <= min(moved[by] for by in possible) + 1e-9


def test_a_number_of_parts_or_a_way_to_split_that_there_is_not():
    for parts in (0, 1, -2, True, 2.0, "2", None):
        with raises(tfdist.research.SplitError, "2 parts", "received"):
            Split(parts)
    with raises(tfdist.research.SplitError, "'rows'", "'heads'"):
        Split(2, "heads")


ORTHOGONAL = "orthogonal_regularizer"


def model():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", name="big"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(4, kernel_constraint="max_norm", name="bound"),
            layers.Dense(4, kernel_regularizer=ORTHOGONAL, name="straight"),
            keras.Sequential([layers.Dense(4, name="deep")], name="inner"),
        ]
    )


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"bigger": 2}, "has no layer 'bigger'; what can be split in it: big, bound"),
        ({"big": 0}, "2 parts or more; received 0"),
        ({"big": True}, "2 parts or more; received True"),
        ({"big": 9}, "layer 'big' has 6 rows and 8 columns.*at most 8 parts"),
        ({"big": Split(7, "rows")}, "layer 'big' has 6 rows.*at most 6 parts"),
        ({"norm": 2}, "'norm' is a BatchNormalization.*Leave it whole"),
        ({"bound": 2}, "constraint MaxNorm.*Take NonNeg"),
        ({"straight": 2}, "regularizer OrthogonalRegularizer.*Take L1 or L2"),
        ({"deep": 2}, "one of the model 'inner' within the model"),
    ],
)
def test_what_cannot_be_split(split, message):
    with pytest.raises(tfdist.research.SplitError, match=message):
        tfdist.research.split_layers(model(), split)


@pytest.mark.parametrize("split", [2, "big", ["big"], None])
def test_what_is_no_mapping(split):
    with raises(TypeError, '{"big": 2'):
        tfdist.research.split_layers(model(), split)


def test_a_subclassed_model_is_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.big = layers.Dense(4, name="big")

        def call(self, x):
            return self.big(x)

    with raises(tfdist.research.SplitError, "keras.Input"):
        tfdist.research.split_layers(Own(), {"big": 2})
    with raises(TypeError, "keras.Model"):
        tfdist.research.split_layers(layers.Dense(4), {"big": 2})


def test_the_copy_has_the_names_the_weights_and_what_is_compiled():
    plain = model()
    plain.compile("adam", "mse")
    plain.get_layer("norm").set_weights([np.full(8, each) for each in (1, 2, 3, 4)])
    plain.get_layer("norm").trainable = False
    split = tfdist.research.split_layers(plain, {"big": 3})
    assert [each.name for each in split.layers] == [each.name for each in plain.layers]
    assert split.optimizer.name == "adam"
    assert split.optimizer is not plain.optimizer
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    np.testing.assert_allclose(split(x), plain(x), atol=1e-6)
    big = split.get_layer("big")
    np.testing.assert_array_equal(big.kernel, plain.get_layer("big").kernel)
    np.testing.assert_array_equal(big.bias, plain.get_layer("big").bias)
    # The order of `get_weights`: each part's matrix and its part of the bias.
    shapes = [((6, columns), (columns,)) for columns in (3, 3, 2)]
    assert [each.shape for each in big.get_weights()] == [s for p in shapes for s in p]
    again = tfdist.research.split_layers(split, {"big": Split(2, "rows")})
    np.testing.assert_allclose(again(x), plain(x), atol=1e-6)
    assert len(again.get_layer("big").get_weights()) == 3


@pytest.mark.parametrize("by", ["rows", "columns"])
@pytest.mark.parametrize(
    ("kind", "split", "sizes"),
    [
        (layers.Dense, dense.Dense, (8,)),
        (layers.Embedding, embedding.Embedding, (9, 4)),
    ],
)
def test_begins_as_the_plain_layer_does(kind, split, sizes, by):
    keras.utils.set_random_seed(3)
    plain = kind(*sizes, name="a")
    keras.utils.set_random_seed(3)
    ours = split(*sizes, parts=3, by=by, name="a")
    for each in (plain, ours):
        each.build((2, 6))
    np.testing.assert_array_equal(ours.whole_weights()[0], plain.get_weights()[0])


def test_a_layer_that_is_not_trained_has_parts_that_are_not():
    plain = model()
    plain.get_layer("big").trainable = False
    split = tfdist.research.split_layers(plain, {"big": 2}).get_layer("big")
    parts = split.pieces().parts
    for trainable in (False, True, False):
        # As it was made, at first.
        if split.trainable != trainable:
            split.trainable = trainable
        assert bool(split.trainable_variables) == trainable
        assert {bool(each.trainable_variables) for each in parts} == {trainable}


def test_computes_in_half_precision_as_the_plain_layer_does():
    half = layers.Dense(8, dtype="mixed_float16")
    plain = keras.Sequential([keras.Input((6,)), half])
    split = tfdist.research.split_layers(
        plain, {plain.layers[0].name: Split(2, "rows")}
    )
    x = np.ones((2, 6), "float32")
    assert split(x).dtype == plain(x).dtype
    np.testing.assert_allclose(split(x), plain(x), atol=1e-2)


# Plans.


def chain(*nodes, sizes):
    edges = [
        LayerEdge(a.name, b.name, size)
        for (a, b), size in zip(itertools.pairwise(nodes), sizes, strict=True)
    ]
    return LayerGraph(nodes, tuple(edges))


UP, DOWN = LayerMatrix(10, 40), LayerMatrix(40, 10)


def mlp(first=UP, second=DOWN):
    return chain(
        LayerNode("in", 1.0, 2.0, 10),
        LayerNode("up", 20.0, 40.0, 1600, 160, matrix=first),
        LayerNode("down", 20.0, 40.0, 1600, 40, matrix=second),
        LayerNode("out", 1.0, 2.0, 10),
        sizes=[40, 160, 40],
    )


def edges_of(graph):
    return {(e.source, e.target): e.size for e in graph.edges}


def test_parts_take_their_share():
    graph = with_parts(mlp(), {"up": Split(4, "columns")})
    nodes = {node.name: node for node in graph.nodes}
    for at in range(4):
        part = nodes[f"up_part_{at}"]
        assert (part.forward, part.backward, part.weights) == (5.0, 10.0, 400)
        assert edges_of(graph)["in", part.name] == 40
        assert edges_of(graph)[part.name, "up_join"] == 40
    assert graph.seconds == mlp().seconds
    # One tensor, which reaches a device once.
    assert {e.output for e in graph.edges if e.source == "in"} == {0}


def test_parts_by_rows_take_some_of_the_input_each():
    graph = with_parts(mlp(), {"down": Split(4, "rows")})
    for at in range(4):
        assert edges_of(graph)["up", f"down_part_{at}"] == 40
        assert edges_of(graph)[f"down_part_{at}", "down_join"] == 40
    assert len({e.output for e in graph.edges if e.source == "up"}) == 4
    # Of a lookup each takes all.
    table = with_parts(
        mlp(second=LayerMatrix(40, 10, is_lookup=True)), {"down": Split(4, "rows")}
    )
    assert edges_of(table)["up", "down_part_1"] == 160


BOTH = {"up": Split(2, "columns"), "down": Split(2, "rows")}


def test_a_pair_is_not_joined_between():
    graph = with_parts(mlp(), BOTH)
    assert edges_of(graph)["up_part_1", "down_part_1"] == 80
    assert ("up_part_0", "down_part_1") not in edges_of(graph)
    assert "up_join" not in graph.order
    # Nor is it a pair where a softmax or another number of parts is between.
    for other in (
        with_parts(mlp(LayerMatrix(10, 40, is_whole=True)), BOTH),
        with_parts(mlp(), {**BOTH, "down": Split(4, "rows")}),
    ):
        assert "up_join" in other.order


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5), st.sampled_from(["rows", "columns"]), st.booleans())
def test_bytes_of_weights_stay_and_parts_lose_none(parts, by, both):
    split = {"up": Split(parts, by)}
    if both:
        split["down"] = Split(parts, "rows")
    graph = with_parts(mlp(), split)
    assert sum(n.weights for n in graph.nodes) >= sum(n.weights for n in mlp().nodes)
    devices = tuple(Device(f"d{at}") for at in range(parts))
    assert Work(graph, devices, Links()).bound <= Work(mlp(), devices, Links()).bound


DEVICES = [Device("a"), Device("b")]


def test_a_plan_splits_what_is_faster_so():
    plan = tfdist.research.place_layers(mlp(), DEVICES, Links(1e6, 1e-3), split=2)
    assert plan.split == BOTH
    # Half of 120 seconds, beside 6 of the rest.
    assert plan.seconds == pytest.approx(66, abs=0.1)
    assert plan.compared[WHOLE] == pytest.approx(126)
    assert {plan.placed["up_part_0"], plan.placed["up_part_1"]} == {"a", "b"}
    assert "up is split by columns into 2 parts" in plan.table()
    assert tfdist.research.LayerPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("by_rule", [0.8, 1.25])
def test_a_pair_is_worth_it_from_the_size_that_the_docs_say(by_rule):
    """4 F / (3 B) units between, for F operations and B bytes a second."""
    speed, bandwidth, rows, numbers = 1e9, 1e6, 16, 1000
    units = by_rule * 4 / 3 * speed / bandwidth
    forward = 2 * rows * numbers * units / speed
    matrix = LayerMatrix(numbers, int(units)), LayerMatrix(int(units), numbers)
    size, costs = 4 * rows * numbers, (forward, 2 * forward, int(4 * numbers * units))
    graph = chain(
        LayerNode("in", 1e-9, 1e-9),
        LayerNode("up", *costs, matrix=matrix[0]),
        LayerNode("down", *costs, matrix=matrix[1]),
        LayerNode("out", 1e-9, 1e-9),
        sizes=[size, int(4 * rows * units), size],
    )
    plan = tfdist.research.place_layers(graph, DEVICES, Links(bandwidth), split=2)
    assert set(plan.split) == ({"up", "down"} if by_rule > 1 else set())


def test_a_plan_leaves_whole_what_messages_would_delay():
    by_hand = {"*": "a"}
    plan = tfdist.research.place_layers(
        mlp(), DEVICES, Links(1.0), split=2, by_hand=by_hand
    )
    assert not plan.split
    assert plan == tfdist.research.place_layers(
        mlp(), DEVICES, Links(1.0), by_hand=by_hand
    )


def test_a_plan_splits_what_fits_only_so():
    small = [Device(name, memory=1300) for name in "abcd"]
    with raises(tfdist.research.DoesNotFitError, "'up' alone", "1,760"):
        tfdist.research.place_layers(mlp(), small, Links(1.0))
    plan = tfdist.research.place_layers(mlp(), small, Links(1.0), split=2)
    assert plan.split == BOTH
    assert plan.compared[WHOLE] is None
    assert all(used <= 1300 for used in plan.bytes_per_device.values())
    with raises(tfdist.research.DoesNotFitError, "alone"):
        tfdist.research.place_layers(
            mlp(), [Device("a", memory=500)], Links(1.0), split=2
        )


def test_a_plan_splits_several_layers_where_one_is_not_enough():
    """Seven on five devices, each of which has room for one and a half."""
    square = LayerMatrix(8, 8)
    layers = [LayerNode(f"n{at}", 1.0, 2.0, 600, matrix=square) for at in range(7)]
    graph = chain(*layers, sizes=[0] * 6)
    devices = [Device(name, memory=900) for name in "abcde"]
    with raises(tfdist.research.DoesNotFitError, "no assignment"):
        tfdist.research.place_layers(graph, devices)
    plan = tfdist.research.place_layers(graph, devices, split=4)
    assert len(plan.split) >= 2
    assert max(plan.bytes_per_device.values()) <= 900


def test_a_plan_does_not_split_layers_that_are_called_twice():
    names = ("up", "up#2")
    calls = (LayerNode(name, 20.0, 40.0, 1600, 160, "up", UP) for name in names)
    graph = LayerGraph(tuple(calls))
    assert not tfdist.research.place_layers(graph, DEVICES, split=2).split
    with raises(tfdist.research.LayerGraphError, "called once"):
        resolved_split(graph, {"up": Split(2)})


@pytest.mark.parametrize("split", [0, True, 1.5, "2"])
def test_a_number_of_parts_of_a_plan_that_is_none(split):
    with raises(ValueError, "1 for none", "received"):
        tfdist.research.place_layers(mlp(), DEVICES, split=split)


def test_the_graph_of_a_model_says_what_can_be_split():
    from tfdist.research.model_parallel.estimated import estimate_layers

    graph = estimate_layers(model(), flops=math.pi)
    assert {node.name: node.matrix for node in graph.nodes if node.matrix} == {
        "big": LayerMatrix(6, 8)
    }


@pytest.mark.parametrize(
    ("split", "old", "new"),
    [
        (2, '"parts": 2', '"parts": 1'),
        (2, '"by": "rows"', '"by": "heads"'),
        (1, '"rows": 10', '"rows": 0'),
        (1, '"columns": 40', '"columns": "40"'),
    ],
)
def test_a_plan_file_with_a_split_that_is_none(split, old, new):
    text = tfdist.research.place_layers(
        mlp(), DEVICES, Links(1e6), split=split
    ).to_json()
    assert tfdist.research.LayerPlan.from_json(text).to_json() == text
    assert old in text
    with pytest.raises(tfdist.errors.PlanFileError):
        tfdist.research.LayerPlan.from_json(text.replace(old, new))
