"""Placement of layers: the simulated step is one that devices and links can do, it fits,
and nothing that is known is faster."""

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.errors import PlanFileError
from tfdist.research import (
    Device,
    DoesNotFitError,
    LayerEdge,
    LayerGraph,
    LayerGraphError,
    LayerNode,
    LayerPlan,
    Links,
    place_layers,
)
from tfdist.research.model_parallel import search
from tfdist.research.model_parallel.fit import place_by_memory
from tfdist.research.model_parallel.heft import place_by_finish_time
from tfdist.research.model_parallel.stages import place_in_stages
from tfdist.research.model_parallel.step import simulate
from tfdist.research.model_parallel.work import Work

from ..support.raising import raises

SIZES = st.sampled_from([0, 10, 1000])


@st.composite
def graphs(draw, most=6):
    """Any graph of a few nodes, some of which call the same layer."""
    count = draw(st.integers(1, most))
    seconds = st.floats(0.0, 5.0)
    layers = [draw(st.integers(0, 2 * most)) for _ in range(count)]
    weights = [draw(SIZES) for _ in range(2 * most + 1)]
    nodes = tuple(
        LayerNode(
            f"n{at}",
            draw(seconds),
            draw(seconds),
            weights[layers[at]],
            draw(SIZES),
            f"layer{layers[at]}",
        )
        for at in range(count)
    )
    edges = []
    for source in range(count):
        size = draw(SIZES)
        edges += [
            LayerEdge(f"n{source}", f"n{target}", size, draw(st.booleans()))
            for target in range(source + 1, count)
            if draw(st.booleans())
        ]
    return LayerGraph(nodes, tuple(edges))


@st.composite
def works(draw, most=6, fewest_devices=1):
    devices = tuple(
        Device(f"d{at}", draw(st.sampled_from([0.5, 1.0, 2.0])))
        for at in range(draw(st.integers(fewest_devices, 3)))
    )
    between = {}
    if len(devices) > 1 and draw(st.booleans()):
        between["d0", "d1"] = (draw(st.floats(10.0, 1e4)), draw(st.floats(0.0, 1.0)))
    links = Links(draw(st.sampled_from([math.inf, 100.0])), 0.1, between)
    return Work(draw(graphs(most)), devices, links, draw(st.sampled_from([1, 1, 3])))


def assignments(work):
    return itertools.product(range(len(work.devices)), repeat=len(work.graph.units))


def plan_of(work, assignment):
    names = [work.devices[device].name for device in assignment]
    return LayerPlan(
        work.graph,
        work.devices,
        work.links,
        dict(zip(work.graph.units, names, strict=True)),
        work.microbatches,
    )


def check_one_at_a_time(spans):
    spans = sorted(spans)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end - 1e-9


@settings(deadline=None)
@given(works(), st.data())
def test_a_simulated_step_is_one_that_devices_and_links_can_do(work, data):
    assignment = data.draw(st.sampled_from(list(assignments(work))))
    plan = plan_of(work, assignment)
    tasks = {(t.node, t.is_backward, t.microbatch): t for t in plan.tasks}
    assert len(tasks) == work.num_tasks
    for device in work.devices:
        chosen = [t for t in plan.tasks if t.device == device.name]
        check_one_at_a_time((t.start, t.end) for t in chosen if t.end > t.start)
    for pair in itertools.permutations([d.name for d in work.devices], 2):
        link = work.links.of(*pair)
        sent = [m for m in plan.messages if (m.source, m.target) == pair]
        check_one_at_a_time((m.start, m.arrival - link.latency) for m in sent)
        for each in sent:
            took = each.size / link.bandwidth + link.latency
            assert each.arrival - each.start == pytest.approx(took)
    # Each message leaves after what it carries, and arrives before what needs it.
    there = {
        (m.node, m.is_backward, m.microbatch, m.source, m.target): m
        for m in plan.messages
    }
    home = {t.node: t.device for t in plan.tasks}
    for part in range(work.microbatches):
        for node in work.graph.nodes:
            forward, backward = (tasks[node.name, back, part] for back in (False, True))
            assert forward.end <= backward.start + 1e-9
            speed = next(d.speed for d in work.devices if d.name == home[node.name])
            took = node.forward / work.microbatches / speed
            assert forward.end - forward.start == pytest.approx(took)
        for edge in work.graph.edges:
            ways = [(edge.source, edge.target, False)]
            if edge.has_gradient:
                ways.append((edge.target, edge.source, True))
            for first, then, back in ways:
                before, after = tasks[first, back, part], tasks[then, back, part]
                arrival = before.end
                if home[first] != home[then]:
                    message = there[edge.source, back, part, home[first], home[then]]
                    assert message.start >= before.end - 1e-9
                    arrival = message.arrival
                assert after.start >= arrival - 1e-9


@settings(deadline=None)
@given(works())
def test_nothing_is_faster_than_the_bound(work):
    for assignment in assignments(work):
        assert simulate(work, assignment).seconds >= work.bound * (1 - 1e-9)


@settings(deadline=None)
@given(works(), st.data())
def test_the_critical_path_explains_every_second(work, data):
    assignment = data.draw(st.sampled_from(list(assignments(work))))
    run = simulate(work, assignment)
    clock = 0.0
    for code in run.critical_path():
        if code >= 0:
            start, end = run.start[code], run.end[code]
        else:
            message = run.messages[-2 - code]
            start, end = message.start, message.arrival
            # The next one on the link follows the last byte, not the arrival.
            assert start <= clock + 1e-9
            clock = end
            continue
        assert start <= clock + 1e-9
        clock = end
    assert clock == pytest.approx(run.seconds)


@settings(deadline=None, max_examples=60)
@given(works(most=5, fewest_devices=2))
def test_the_plan_is_at_most_a_tenth_slower_than_the_best_of_all(work):
    plan = place_layers(
        work.graph, work.devices, work.links, microbatches=work.microbatches
    )
    best = min(simulate(work, each).seconds for each in assignments(work))
    assert plan.seconds <= 1.1 * best + 1e-9


@settings(deadline=None, max_examples=60)
@given(works(), st.sampled_from([None, 0, 1000, 3000]))
def test_no_placement_that_it_compares_with_is_faster(work, memory):
    devices = [Device(d.name, d.speed, memory) for d in work.devices]
    try:
        plan = place_layers(
            work.graph,
            devices,
            work.links,
            microbatches=work.microbatches,
            by_hand={"*": "d0"},
            effort=0,
        )
    except DoesNotFitError:
        return
    assert plan.compared["by hand"] == plan.compared["all on d0"]
    for name, seconds in plan.compared.items():
        assert seconds is None or plan.seconds <= seconds * (1 + 1e-9), name


@settings(deadline=None, max_examples=100)
@given(graphs(), st.lists(st.integers(0, 4000), min_size=1, max_size=3))
def test_it_fits_where_anything_fits_and_says_otherwise_what_is_missing(graph, rooms):
    devices = tuple(Device(f"d{at}", 1.0, room) for at, room in enumerate(rooms))
    work = Work(graph, devices, Links())
    can = any(work.fits(each) for each in assignments(work))
    if can:
        plan = place_layers(graph, devices, effort=100)
        for at, device in enumerate(devices):
            assert plan.bytes_per_device[device.name] <= rooms[at]
        return
    with pytest.raises(DoesNotFitError) as caught:
        place_layers(graph, devices, effort=100)
    missing, largest = caught.value.missing, max(work.unit_bytes)
    assert f"{missing:,} bytes" in str(caught.value)
    assert missing > 0
    total = sum(work.unit_bytes)
    if largest > max(rooms):
        assert missing == largest - max(rooms)
    elif total > sum(rooms):
        assert missing == total - sum(rooms)
    else:
        for more, fits in ((missing - 1, False), (missing, True)):
            larger = tuple(Device(d.name, 1.0, d.memory + more) for d in devices)
            larger = Work(graph, larger, Links())
            assert any(larger.fits(each) for each in assignments(larger)) == fits


@given(works())
def test_calls_of_a_layer_share_its_device_and_its_weights(work):
    plan = plan_of(work, (0,) * len(work.graph.units))
    layers = {node.layer: node.weights for node in work.graph.nodes}
    kept = sum(node.activations for node in work.graph.nodes)
    assert plan.bytes_per_device["d0"] == sum(layers.values()) + kept
    assert set(plan.placed) == set(layers)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=12), st.integers(1, 4))
def test_what_needs_nothing_is_placed_as_well_as_lists_can(seconds, num_devices):
    nodes = tuple(LayerNode(f"n{at}", each) for at, each in enumerate(seconds))
    devices = tuple(Device(f"d{at}") for at in range(num_devices))
    work = Work(LayerGraph(nodes), devices, Links())
    found = simulate(work, place_by_finish_time(work)).seconds
    # Longest first: Graham, "Bounds on multiprocessing timing anomalies", 1969.
    at_best = max(sum(seconds) / num_devices, max(seconds))
    assert found <= (2 - 1 / num_devices) * at_best * (1 + 1e-9)


@settings(deadline=None)
@given(works(fewest_devices=2))
def test_stages_are_in_order_and_none_could_be_less(work):
    found = place_in_stages(work)
    assert list(found) == sorted(found)

    def slowest(assignment):
        seconds = [0.0] * len(work.devices)
        for unit, device in enumerate(assignment):
            seconds[device] += work.unit_seconds[unit] / work.devices[device].speed
        return max(seconds)

    ordered = [each for each in assignments(work) if list(each) == sorted(each)]
    assert slowest(found) <= min(map(slowest, ordered)) * (1 + 1e-6) + 1e-9


@settings(deadline=None)
@given(works(), st.data())
def test_a_plan_survives_its_file(work, data):
    assignment = data.draw(st.sampled_from(list(assignments(work))))
    plan = plan_of(work, assignment)
    again = LayerPlan.from_json(plan.to_json())
    assert again == plan
    assert again.seconds == plan.seconds


def apart(*weights):
    """Layers of a second that need nothing of each other."""
    nodes = (LayerNode(f"n{at}", 1.0, weights=w) for at, w in enumerate(weights))
    return LayerGraph(tuple(nodes))


def chain(length, seconds=1.0, size=0):
    names = [f"n{at}" for at in range(length)]
    return LayerGraph(
        tuple(LayerNode(name, seconds, 2 * seconds) for name in names),
        tuple(LayerEdge(a, b, size) for a, b in itertools.pairwise(names)),
    )


def test_rounding_leaves_no_layer_without_a_stage():
    nodes = [LayerNode(f"n{at}", each) for at, each in enumerate([5.0, 0.3, 0.1, 1e-9])]
    work = Work(LayerGraph(tuple(nodes)), (Device("a"),), Links())
    assert place_in_stages(work) == (0, 0, 0, 0)


def test_a_chain_stays_on_the_fastest_device():
    devices = [Device("slow", 0.5), Device("fast", 2.0), Device("other", 1.0)]
    plan = place_layers(chain(12, size=10), devices, Links(1000.0, 0.01))
    assert set(plan.placed.values()) == {"fast"}
    assert plan.seconds == plan.bound == 18.0
    assert plan.messages == ()


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_microbatches_make_a_pipeline_of_a_chain(stages, parts):
    devices = [Device(f"d{at}") for at in range(stages)]
    plan = place_layers(chain(stages), devices, microbatches=parts)
    tasks_each_way = parts + stages - 1
    assert plan.seconds == pytest.approx(tasks_each_way * (1 + 2) / parts)
    bubble = 1 - sum(plan.busy.values()) / stages
    assert bubble == pytest.approx((stages - 1) / tasks_each_way)


def diamond(size=100):
    """A source, two branches and a sum."""
    nodes = [LayerNode(name, 1.0, 1.0) for name in ("in", "left", "right", "sum")]
    edges = [("in", "left"), ("in", "right"), ("left", "sum"), ("right", "sum")]
    return LayerGraph(tuple(nodes), tuple(LayerEdge(*pair, size) for pair in edges))


def test_branches_are_computed_at_the_same_time_if_the_links_are_fast_enough():
    two = [Device("a"), Device("b")]
    fast = place_layers(diamond(), two, Links(1e4, 0.001))
    assert fast.placed["left"] != fast.placed["right"]
    assert fast.seconds < 6.1
    slow = place_layers(diamond(), two, Links(10.0, 0.001))
    assert len(set(slow.placed.values())) == 1
    assert slow.seconds == 8.0
    assert slow.compared["stages of equal cost"] > 8.0


def test_a_link_of_its_own_counts():
    three = [Device("a"), Device("b"), Device("c")]
    links = Links(1e4, 0.001, between={("a", "b"): (1.0, 5.0)})
    assert links.of("b", "a") == links.of("a", "b") == (1.0, 5.0)
    assert links.of("b", "c") == (1e4, 0.001)
    plan = place_layers(diamond(), three, links)
    assert plan.seconds < 6.1
    assert {plan.placed["left"], plan.placed["right"]} != {"a", "b"}


def test_a_tensor_reaches_a_device_once_and_its_gradient_returns_once():
    nodes = [LayerNode(name, 1.0, 1.0) for name in ("in", "left", "right")]
    edges = (LayerEdge("in", "left", 50), LayerEdge("in", "right", 50))
    graph = LayerGraph(tuple(nodes), edges)
    work = Work(graph, (Device("a"), Device("b")), Links(100.0, 0.0))
    plan = plan_of(work, (0, 1, 1))
    assert [(m.node, m.is_backward, m.size) for m in plan.messages] == [
        ("in", False, 50),
        ("in", True, 50),
    ]
    assert plan.bytes_sent == 100


def test_the_effort_bounds_what_is_simulated(monkeypatch):
    ended = []

    def counted(*args, **kwargs):
        run = simulate(*args, **kwargs)
        ended.append(run.ended)
        return run

    monkeypatch.setattr(search, "simulate", counted)
    work = Work(chain(50, size=9), tuple(Device(f"d{i}") for i in range(4)), Links(9.0))
    starts = [place_by_finish_time(work), place_in_stages(work)]
    search.improve(work, starts, effort=2000)
    assert sum(ended) <= 2000 + 4 * work.num_tasks


def test_the_same_seed_gives_the_same_plan():
    devices = [Device("a"), Device("b", 0.5)]
    plans = [place_layers(diamond(), devices, Links(200.0), seed=3) for _ in range(2)]
    assert plans[0] == plans[1]


def node(name="a", **values):
    return LayerNode(name, **{"forward": 1.0, **values})


def graph(*nodes, edges=()):
    return LayerGraph(nodes, tuple(LayerEdge(*each) for each in edges))


A, B, C = map(node, "abc")
FINITE = "must be a finite number >= 0"
SAME_WEIGHTS = "calls of layer 'x' must state the same weights; received 1 and 2"
TWO_SIZES = [("a", "b", 1), ("a", "c", 2)]
UNEQUAL = [node(layer="x", weights=1), node("b", layer="x", weights=2)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (graph, "at least one node"),
        (lambda: node(forward=-1.0), f"forward of node 'a' {FINITE}"),
        (lambda: node(weights=math.nan), "weights of node 'a'"),
        (lambda: LayerEdge("a", "b", -1), "size of the edge from 'a' to 'b'"),
        (lambda: graph(A, A), "2 nodes have the name 'a'"),
        (lambda: graph(A, edges=["ab"]), "has no node 'b': add the node"),
        (lambda: graph(A, B, edges=["ab", "ba"]), "what it computes itself"),
        (lambda: graph(A, B, edges=["ab"] * 2), "from 'a' to 'b' is there twice"),
        (lambda: graph(A, B, C, edges=TWO_SIZES), "output 0 of 'a' has 1 bytes"),
        (lambda: graph(*UNEQUAL), SAME_WEIGHTS),
    ],
)
def test_a_graph_that_is_none_is_refused(make, message):
    with pytest.raises(LayerGraphError, match=message):
        make()


ONE, TO_Z, M = (Device("a"),), {("a", "z"): (1.0, 0.0)}, {"*": "a", "m*": "a"}


def placed(layers, *args, **kwargs):
    return place_layers(chain(layers), ONE, *args, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("a", 0.0), "speed of device 'a' must be a positive number"),
        (lambda: Device("a", memory=-1), "memory of device 'a'"),
        (lambda: Links(0.0), "the links must have a bandwidth above 0"),
        (lambda: Links(between={("a", "b"): (1.0, -1.0)}), "link from 'a' to 'b'"),
        (lambda: place_layers(chain(1), []), "at least one device"),
        (lambda: place_layers(chain(1), ONE * 2), "a name of its own"),
        (
            lambda: placed(1, Links(between=TO_Z)),
            "link from 'a' to 'z', and the devices",
        ),
        (lambda: placed(1, microbatches=0), "at least 1; received 0"),
        (lambda: placed(1, by_hand={"n0": "z"}), "by_hand names the device 'z'"),
        (lambda: placed(2, by_hand={"n0": "a"}), "has no device for layer 'n1'"),
        (lambda: placed(1, by_hand=M), r"must match a layer.* received 'm\*'"),
    ],
)
def test_what_cannot_be_placed_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: place_layers(chain(1), ["a"]), "list of tfdist.research.Device"),
        (lambda: place_layers(chain(1), ONE, 1e9), "network is tfdist.research.Links"),
    ],
)
def test_another_type_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def tight(sizes, rooms):
    devices = [Device(f"d{i}", memory=room) for i, room in enumerate(rooms)]
    return place_layers(apart(*sizes), devices)


@pytest.mark.parametrize(
    ("sizes", "rooms", "missing", "message"),
    [
        ([50, 900], [600, 800], 100, "layer 'n1' alone takes 900 bytes.* has 800"),
        ([600, 700, 800], [900, 900], 300, "take 2,100 bytes, and all .* 1,800"),
        ([600, 600, 600], [900, 1000], 200, "with 200 bytes more on each device"),
    ],
)
def test_what_does_not_fit_says_by_how_much(sizes, rooms, missing, message):
    with pytest.raises(DoesNotFitError, match=message) as caught:
        tight(sizes, rooms)
    assert caught.value.missing == missing


def test_what_only_just_fits_is_found():
    # The largest first, each to the most room, leaves one of 2 without a place.
    devices = (Device("a", memory=6), Device("b", memory=6))
    work = Work(apart(3, 2, 3, 2, 2), devices, Links())
    assert work.used(place_by_memory(work)) == [6, 6]


def test_a_device_without_room_is_left_out_from_the_start():
    devices = (Device("none", memory=9), Device("half", memory=20), Device("slow", 0.1))
    work = Work(apart(10, 10, 10, 10), devices, Links())
    assert work.used(place_by_finish_time(work)) == [0, 20, 20]


def test_the_search_descends_before_it_tries_at_random(monkeypatch):
    monkeypatch.setattr(search, "_FRUITLESS", 0)
    work = Work(diamond(), (Device("a"), Device("b")), Links(1e4, 0.001))
    found = search.improve(work, [(0, 0, 0, 0)])
    assert simulate(work, found).seconds < 6.1


def a_plan(**values):
    return place_layers(
        diamond(),
        [Device("a", memory=10**6), Device("b", 0.5)],
        Links(1e4, 0.001),
        by_hand={"left": "b", "*": "a"},
        **values,
    )


def test_a_plan_as_text_and_in_a_file(tmp_path):
    plan = a_plan()
    plan.save(tmp_path / "plan.json")
    assert LayerPlan.load(tmp_path / "plan.json") == plan
    text = str(plan)
    for words in ("placed", "all on a", "by hand", "lower bound", "stages of equal"):
        assert words in text
    rows = plan.table().splitlines()
    assert all(any(name in row for row in rows) for name in ("left", "right", "sum"))
    assert plan.stages == {
        name: tuple(u for u in plan.graph.units if plan.placed[u] == name)
        for name in ("a", "b")
    }


def test_what_does_not_fit_is_compared_as_such():
    devices = [Device("x", memory=900), Device("y", memory=900)]
    plan = place_layers(apart(600, 600), devices)
    assert plan.compared["all on x"] is None
    assert "does not fit" in str(plan)


def test_a_plan_as_a_picture(tmp_path):
    plan = a_plan(microbatches=2)
    plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with raises(ValueError, "PNG"):
        plan.plot(tmp_path / "plan.svg")


def changed(change):
    data = json.loads(a_plan().to_json())
    change(data)
    return json.dumps(data)


def one_layer_on_two_devices(data):
    for each, device in zip(data["nodes"], "ab", strict=False):
        each.update(layer="x", device=device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a plan that tfdist.research.LayerPlan.save has written"),
        ("[]", "an object"),
        (changed(lambda d: d.update(version=2)), "version 2"),
        (changed(lambda d: d.pop("devices")), "'devices' is missing"),
        (changed(lambda d: d["nodes"][0].update(device="z")), "'device' is one of"),
        (changed(lambda d: d["nodes"][0].update(forward="1")), "'forward' is a number"),
        (changed(lambda d: d["edges"][0].update(source="z")), "no node 'z'"),
        (changed(lambda d: d.update(microbatches=0)), "at least 1"),
        (changed(lambda d: d["links"].update(between=[["a"]])), "a list of source"),
        (changed(one_layer_on_two_devices), "a layer has one device"),
    ],
)
def test_another_file_is_refused(text, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanFileError, match=message) as caught:
        LayerPlan.load(path)
    assert "plan.json" in str(caught.value)
