"""Where a chain is cut, how a batch is divided, and what is refused: without TensorFlow."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tfdist.research.model_parallel import step
from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerEdge, LayerGraph, LayerNode
from tfdist.research.model_parallel.pipeline import arguments, cut
from tfdist.research.model_parallel.pipeline.chain import OUTPUTS, Chain
from tfdist.research.model_parallel.pipeline.cut import choose_cut, equal_ends
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.pipeline.step_time import (
    Execution,
    StageCosts,
    step_seconds,
)
from tfdist.research.model_parallel.schedule import SCHEDULES, make_schedule
from tfdist.research.model_parallel.work import Work

from ..support.raising import raises

COSTS = st.lists(st.integers(0, 20), min_size=1, max_size=7)
SECONDS = st.integers(0, 5)


@st.composite
def graphs(draw, most=7):
    """Layers in a row that also take what earlier ones give."""
    count = draw(st.integers(2, most))
    nodes = [
        LayerNode(f"n{at}", draw(SECONDS), draw(SECONDS), draw(SECONDS), draw(SECONDS))
        for at in range(count)
    ]
    edges = []
    for at in range(1, count):
        sources = draw(st.sets(st.integers(0, at - 1), max_size=2)) | {at - 1}
        for source in sorted(sources):
            # An output of its own for each use, with and without a gradient.
            size, back = draw(st.integers(0, 9)), draw(st.booleans())
            edges.append(LayerEdge(f"n{source}", f"n{at}", size, back, at))
    return LayerGraph(tuple(nodes), tuple(edges))


def graph_of(seconds, sizes, weights=0):
    nodes = [LayerNode(f"n{at}", s, 2 * s, weights) for at, s in enumerate(seconds)]
    edges = [LayerEdge(f"n{at}", f"n{at + 1}", size) for at, size in enumerate(sizes)]
    return LayerGraph(tuple(nodes), tuple(edges))


def devices_of(count):
    return [Device(f"d{each}") for each in range(count)]


def chain_of(graph, count, links, together=()):
    order = range(len(graph.nodes))
    return Chain(graph, order, together, devices_of(count), links)


def all_ends(pieces, count):
    return itertools.combinations(range(1, pieces), count - 1)


def ends_of(stages):
    return tuple(at for at in range(1, len(stages)) if stages[at] != stages[at - 1])


@given(COSTS, st.integers(1, 4))
def test_no_other_cut_has_a_longer_longest_part(costs, count):
    assume(count <= len(costs))
    greatest = {}
    for ends in [*all_ends(len(costs), count), equal_ends(costs, count)]:
        bounds = [0, *ends, len(costs)]
        assert bounds == sorted(set(bounds))
        greatest[ends] = max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds))
    assert greatest[equal_ends(costs, count)] == min(greatest.values())


@given(graphs(), st.integers(1, 4))
def test_a_step_of_a_chain_takes_what_its_placement_takes(graph, count):
    """With one microbatch, the simulation of `place_layers` has the same tasks."""
    nodes = graph.nodes
    assume(count <= len(nodes))
    edges = [LayerEdge(a.name, b.name, 8) for a, b in itertools.pairwise(nodes)]
    graph, links = LayerGraph(nodes, tuple(edges)), Links(4.0, 1.0)
    chain = chain_of(graph, count, links)
    ends = equal_ends(chain.seconds, count)
    work = Work(graph, devices_of(count), links, 1)
    found = step_seconds(Execution(make_schedule("gpipe", count, 1)), chain.costs(ends))
    assert found == step.simulate(work, chain.stages(ends)).seconds


def test_stages_that_do_not_wait_take_as_long_as_the_longest():
    ways = {(0, 1): 5.0, (1, 0): 1.0}, {(0, 1): 0.5, (1, 0): 0.5}
    execution = Execution(make_schedule("gpipe", 2, 3), waits=False)
    # The first stage computes again, and the last one does not.
    costs = StageCosts([2.0, 2.0], [4.0, 4.0], *ways)
    assert step_seconds(execution, costs) == 3 * (2 + 2 + 4)
    costs = StageCosts([1.0, 2.0], [1.0, 4.0], *ways)
    # What it sends last is on the way.
    assert step_seconds(execution, costs) == 3 * (2 + 4) + 1 + 0.5
    # The results of three tasks, from when the first has ended.
    slow = costs._replace(sent={(0, 1): 20.0})
    assert step_seconds(execution, slow) == 1 + 3 * 20 + 0.5


def test_all_stages_compute_again_under_recompute():
    ways = {(0, 1): 0.0, (1, 0): 0.0}
    execution = Execution(make_schedule("gpipe", 2, 3), recompute=True)
    costs = StageCosts([1.0, 2.0], [2.0, 4.0], ways, ways)
    assert step_seconds(execution, costs) == 1 + 3 * 2 + 3 * (4 + 2) + (2 + 1)


def test_a_tensor_is_sent_to_a_stage_once():
    nodes = tuple(LayerNode(name, 1.0, 1.0) for name in "abcd")
    edges = (
        LayerEdge("a", "b", 10),
        LayerEdge("a", "c", 10),
        LayerEdge("a", "d", 10),
        LayerEdge("b", "c", 3, has_gradient=False),
        LayerEdge("c", "d", 5),
    )
    chain = chain_of(LayerGraph(nodes, edges), 2, Links(1.0))
    assert chain.costs((1,)).sent == {(0, 1): 10, (1, 0): 10}
    assert chain.costs((2,)).sent == {(0, 1): 13, (1, 0): 10}
    assert chain.crossing == [20, 23, 30]
    chain = chain_of(LayerGraph(nodes, edges), 3, Links(1.0))
    sent = chain.costs((1, 3)).sent
    assert sent == {
        (0, 1): 10,
        (1, 0): 10,
        (0, 2): 10,
        (2, 0): 10,
        (1, 2): 5,
        (2, 1): 5,
    }


@given(
    graphs(),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(list(SCHEDULES)),
    st.booleans(),
)
def test_a_cut_is_the_fastest_with_room(graph, count, parts, name, waits):
    links = Links(2.0, 1.0)
    execution = Execution(make_schedule(name, count, parts), waits=waits)
    if count > len(graph.nodes):
        with raises(PipelineError, "each stage"):
            choose_cut(graph, devices_of(count), links, execution)
        return
    stages = choose_cut(graph, devices_of(count), links, execution)
    assert stages == sorted(stages)
    assert set(stages) == set(range(count))
    chain = chain_of(graph, count, links)

    def seconds(ends):
        return step_seconds(execution, chain.costs(ends))

    equal = equal_ends(chain.seconds, count)
    room = [1.25 * each for each in chain.largest(equal)]
    having_room = [
        ends
        for ends in all_ends(len(graph.nodes), count)
        if all(a <= b for a, b in zip(chain.largest(ends), room, strict=True))
    ]
    assert ends_of(stages) in having_room
    found = seconds(ends_of(stages))
    assert found == pytest.approx(min(map(seconds, having_room)))
    assert found <= seconds(equal)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_a_search_is_hardly_slower_than_trying_all(monkeypatch, random, count):
    seconds = [random.choice([1, 1, 1, 5]) for _ in range(16)]
    graph = graph_of(seconds, [random.choice([1, 10, 100]) for _ in range(15)])
    links = Links(random.choice([2.0, 20.0]))
    execution = Execution(make_schedule("gpipe", count, 4))
    chain = chain_of(graph, count, links)

    def of(ends):
        return step_seconds(execution, chain.costs(ends))

    best = min(map(of, all_ends(16, count)))
    # Fewer tries than there are cuts, but enough for what is near.
    with monkeypatch.context() as patched:
        patched.setattr(cut, "_TRIED", math.comb(15, count - 1) - 1)
        found = choose_cut(graph, devices_of(count), links, execution)
    assert of(ends_of(found)) <= 1.1 * best
    assert of(ends_of(found)) <= of(equal_ends(chain.seconds, count))


def test_a_search_starts_from_cuts_where_little_crosses(monkeypatch):
    """From equal stages, no single move leads there."""
    graph = graph_of([1.0] * 24, [10 if at % 7 == 4 else 100 for at in range(23)])
    links, execution = Links(30.0), Execution(make_schedule("gpipe", 4, 4))
    monkeypatch.setattr(cut, "_TRIED", 200)
    stages = choose_cut(graph, devices_of(4), links, execution)
    assert ends_of(stages) == (5, 12, 19)


@pytest.mark.parametrize("microbatches", [8, 32])
def test_a_large_model_is_cut_in_few_tries(monkeypatch, microbatches):
    tried = []

    def counting(execution, costs):
        tried.append(costs)
        return step_seconds(execution, costs)

    monkeypatch.setattr(cut, "step_seconds", counting)
    graph = graph_of([1.0] * 1000, [100 if at % 5 else 10 for at in range(999)])
    execution = Execution(make_schedule("gpipe", 8, microbatches))
    links = Links(1.0)
    stages = choose_cut(graph, devices_of(8), links, execution)
    size = 2 * len(execution.order) + 999
    assert 100 < len(tried) <= min(1500, 1_000_000 // size)
    # All cuts are where little crosses.
    assert all(end % 5 == 1 for end in ends_of(stages))


def test_without_a_gain_stages_are_equal():
    """With one microbatch, a chain takes equally long wherever it is cut."""
    graph = graph_of([1.0] * 9, [0] * 8)
    for microbatches in 1, 4:
        execution = Execution(make_schedule("gpipe", 3, microbatches))
        stages = choose_cut(graph, devices_of(3), Links(), execution)
        assert stages == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_no_stage_needs_much_more_memory_than_equal_ones():
    execution = Execution(make_schedule("gpipe", 2, 1))
    sizes = [99, 99, 99, 99, 99, 50, 99, 99, 1]
    links = Links(1.0)
    cuts = [
        choose_cut(
            graph_of([1.0] * 10, sizes, weights), devices_of(2), links, execution
        )
        for weights in (0, 7)
    ]
    assert list(map(ends_of, cuts)) == [(9,), (6,)]


def test_a_slow_device_has_less():
    execution = Execution(make_schedule("gpipe", 2, 4))
    devices = [Device("slow", 0.5), Device("fast")]
    stages = choose_cut(graph_of([1.0] * 6, [0] * 5), devices, Links(), execution)
    assert ends_of(stages) == (2,)


def test_branches_are_followed_to_their_end():
    """Two towers, given in turns as Keras gives them, are cut between them."""
    # Each has an output.
    names = ["a0", "b0", "a1", "b1", "a2", "b2"]
    nodes = (*(LayerNode(name, 1.0, 2.0) for name in names), LayerNode(OUTPUTS, 0.0))
    edges = [
        LayerEdge(
            f"{tower}{at}",
            f"{tower}{at + 1}" if at < 2 else OUTPUTS,
            99 if at < 2 else 1,
        )
        for tower in "ab"
        for at in range(3)
    ]
    execution = Execution(make_schedule("gpipe", 2, 4))
    graph = LayerGraph(nodes, tuple(edges))
    stages = choose_cut(graph, devices_of(2), Links(10.0), execution)
    assert stages in ([0, 1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 0, 1])


def test_the_last_stage_has_a_layer():
    nodes = (LayerNode("a", 1.0, 2.0), LayerNode("b", 0.0), LayerNode(OUTPUTS, 0.0))
    edges = (LayerEdge("a", "b", 9), LayerEdge("b", OUTPUTS, 0))
    graph, links = LayerGraph(nodes, edges), Links(1.0)
    for count in 1, 2:
        execution = Execution(make_schedule("gpipe", count, 2))
        stages = choose_cut(graph, devices_of(count), links, execution)
        assert stages == [0, count - 1, count - 1]
    with raises(PipelineError, "model of 2 layers"):
        choose_cut(graph, devices_of(3), links, execution)


def test_calls_of_one_layer_stay_together():
    graph, links = graph_of([1.0] * 4, [1] * 3), Links()
    two, three = (Execution(make_schedule("gpipe", count, 2)) for count in (2, 3))
    stages = choose_cut(graph, devices_of(2), links, two, [[1, 2]])
    assert stages in ([0, 1, 1, 1], [0, 0, 0, 1])
    with raises(PipelineError, "1 and 2 stages"):
        choose_cut(graph, devices_of(3), links, three, [[0, 2]])


def test_calls_of_one_layer_have_its_weights_once():
    nodes = [LayerNode(name, 1.0, weights=5, layer="shared") for name in "ab"]
    graph = LayerGraph((*nodes, LayerNode("c", 1.0, weights=3)))
    chain = chain_of(graph, 2, Links(), [[0, 1]])
    assert [chain.largest(ends)[0] for ends in ((), (1,))] == [8, 5]


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (arguments.checked_stages, 0, "a number of stages of at least 1.*received 0"),
        (arguments.checked_stages, "half", "received 'half'"),
        (arguments.checked_stages, ["a", "b"], "a list with a list of layer names"),
        (arguments.checked_stages, [["a"], []], "stage 1 of 2 has no layer"),
        (arguments.checked_stages, [["a"], ["a"]], "has the layer 'a' twice"),
        (arguments.checked_stages, [["a"], [1]], "names layers; received 1"),
        (arguments.checked_microbatches, 0, "at least 1; received 0"),
        (arguments.checked_microbatches, 2.0, "must be an int; received 2.0"),
        (arguments.checked_schedule, "pipedream", "'gpipe', '1f1b'; received"),
    ],
)
def test_arguments_are_refused_with_what_is_allowed(check, value, message):
    with pytest.raises(PipelineError, match=message):
        check(value)
