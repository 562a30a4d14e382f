"""Which tensors of a step travel together: properties of any graph."""

import graphlib
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.parameter_server.step_graph import messages
from tfdist.parameter_server.step_graph.compiling import turns
from tfdist.parameter_server.step_graph.messages import Node, TaskMessage

TASKS = ("worker", "ps:0", "ps:1", "ps:2")
EMPTY: Mapping[int, int] = MappingProxyType({})


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """A graph of up to 20 nodes, which use and wait for earlier ones."""
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 20))):
        earlier = st.lists(st.integers(0, i - 1), max_size=3, unique=True)
        inputs, after = (draw(earlier) if i else [] for _ in range(2))
        outputs = tuple((f"n{j}", draw(st.integers(0, 1))) for j in inputs)
        waits = tuple(f"n{j}" for j in after)
        nodes.append(Node(f"n{i}", draw(st.sampled_from(TASKS)), outputs, waits))
    return draw(st.permutations(nodes))


def run(
    nodes: list[Node], sent: list[TaskMessage], waits: Mapping[int, int] = EMPTY
) -> int:
    """Runs a graph as the tasks would; returns how many rounds of messages it took.

    A message leaves once all that it carries is computed and the one that it waits for has
    arrived, and a node runs once all that it needs is on its task.
    """
    at_home = {node.name: node.task for node in nodes}
    arrived: set[tuple[str, object]] = set()
    done: set[str] = set()
    before = {id(sent[i]): sent[j] for i, j in waits.items()}
    waiting = list(sent)
    rounds = 0

    def is_here(thing: object, source: str, task: str) -> bool:
        if at_home[source] == task:
            return source in done
        return (task, thing) in arrived

    while True:
        progress = True
        while progress:
            ready = [
                node
                for node in nodes
                if node.name not in done
                and all(is_here(each, each[0], node.task) for each in node.inputs)
                and all(is_here(each, each, node.task) for each in node.after)
            ]
            done |= {node.name for node in ready}
            progress = bool(ready)
        leaving = [
            message
            for message in waiting
            if {each for each, _ in message.outputs} | {*message.signals} <= done
            and before.get(id(message)) not in waiting
        ]
        if not leaving:
            break
        for message in leaving:
            for each in (*message.outputs, *message.signals):
                arrived.add((message.receiver, each))
        waiting = [message for message in waiting if message not in leaving]
        rounds += 1
    assert done == set(at_home), "a node waits forever"
    assert not waiting
    return rounds


def alone(nodes: list[Node]) -> list[TaskMessage]:
    """Each tensor and each signal in a message of its own."""
    tasks = {node.name: node.task for node in nodes}
    pairs = {}
    for node in nodes:
        for each in node.inputs:
            if tasks[each[0]] != node.task:
                message = TaskMessage(tasks[each[0]], node.task, 0, (each,))
                pairs[each, node.task] = message
        for each in node.after:
            if tasks[each] != node.task:
                message = TaskMessage(tasks[each], node.task, 0, (), (each,))
                pairs[each, node.task] = message
    return list(pairs.values())


@given(graphs())
def test_no_chain_of_messages_gets_longer(nodes: list[Node]) -> None:
    assert run(nodes, messages.messages(nodes)) <= run(nodes, alone(nodes))


@given(graphs())
def test_each_tensor_is_sent_once_to_each_task_that_uses_it(nodes: list[Node]) -> None:
    sent = [
        (each, message.receiver)
        for message in messages.messages(nodes)
        for each in (*message.outputs, *message.signals)
    ]
    expected = [
        (each, message.receiver)
        for message in alone(nodes)
        for each in (*message.outputs, *message.signals)
    ]
    assert sorted(sent, key=str) == sorted(expected, key=str)


@given(graphs())
def test_relays_change_nothing_but_the_way(nodes: list[Node]) -> None:
    relayed = messages.via("worker", nodes)
    sent = messages.messages(relayed)
    run(relayed, sent)
    assert len(sent) <= len(messages.messages(nodes))
    assert {node.name for node in nodes} <= {node.name for node in relayed}


@given(graphs())
def test_no_call_that_is_compiled_waits_for_itself(nodes: list[Node]) -> None:
    compiled = {node.name for node in nodes if node.task == "worker"}
    calls = turns(nodes, compiled)
    assert sorted(name for call in calls for name in call) == sorted(compiled)
    call_of = {name: str(i) for i, call in enumerate(calls) for name in call}
    waits: dict[str, set[str]] = {}
    for node in nodes:
        here = call_of.get(node.name, node.name)
        sources = [*(name for name, _ in node.inputs), *node.after]
        outside = {call_of.get(each, each) for each in sources} - {here}
        waits.setdefault(here, set()).update(outside)
    list(
        graphlib.TopologicalSorter(waits).static_order()
    )  # Raises if there is a cycle.


@given(graphs(), st.data())
def test_what_the_roots_need_is_kept(nodes: list[Node], data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(nodes)).name
    kept = {node.name: node for node in messages.needed(nodes, [root])}
    assert root in kept
    for node in kept.values():
        assert {name for name, _ in node.inputs} | set(node.after) <= set(kept)


@given(graphs(), st.data())
def test_large_messages_take_turns_and_nothing_waits_forever(
    nodes: list[Node], data: st.DataObject
) -> None:
    sent = messages.messages(nodes)
    sizes = st.sampled_from([0.0, messages.LEAST_IN_TURN])
    seconds = data.draw(st.lists(sizes, min_size=len(sent), max_size=len(sent)))
    order = messages.in_order(nodes)
    waits = messages.in_turn("worker", sent, seconds, order)
    run(nodes, sent, waits)
    # Of those that could travel at one time, all but the first wait, each for another.
    large = [
        i for i, message in enumerate(sent) if message.sender == "worker" and seconds[i]
    ]
    assert set(waits) | set(waits.values()) <= set(large)
    assert len(set(waits.values())) == len(waits)
    assert len(large) - len(waits) == len({sent[i].level for i in large})
    assert all(sent[i].level == sent[j].level for i, j in waits.items())
    # First goes what is computed first, and what follows comes after what it waits for.
    places = [node.name for node in order]

    def computed(i: int) -> int:
        outputs = [name for name, _ in sent[i].outputs]
        return max(map(places.index, [*outputs, *sent[i].signals]))

    assert all(computed(j) <= computed(i) for i, j in waits.items())
    seen = [i for i in large if i not in waits]
    for i, j in waits.items():
        assert j in seen
        seen.append(i)


def step_of_two_layers(learning_rate_on: str) -> list[Node]:
    """A step of a model with two weights, on two ps."""
    return [
        Node("w0", "ps:0"),
        Node("w1", "ps:1"),
        Node("rate", learning_rate_on),
        Node("loss", "worker", (("w0", 0), ("w1", 0))),
        Node("g0", "worker", (("loss", 0), ("w0", 0))),
        Node("g1", "worker", (("loss", 0), ("w1", 0))),
        Node("u0", "ps:0", (("g0", 0), ("rate", 0))),
        Node("u1", "ps:1", (("g1", 0), ("rate", 0))),
        Node("count", "worker"),
        Node("samples", "ps:0", (("count", 0),)),
    ]


@pytest.mark.parametrize("ps", ["ps:0", "ps:1"])
def test_a_step_takes_one_message_each_way_per_ps(ps: str) -> None:
    nodes = step_of_two_layers(ps)
    assert len(messages.messages(nodes)) == 5, "the rate, from one ps to the other"
    sent = messages.messages(messages.via("worker", nodes))
    assert [(each.sender, each.receiver) for each in sent] == [
        ("ps:0", "worker"),
        ("ps:1", "worker"),
        ("worker", "ps:0"),
        ("worker", "ps:1"),
    ]


def test_dense_weights_travel_with_the_rows_that_a_lookup_found() -> None:
    nodes = [
        Node("ids", "worker"),
        Node("rows", "ps:0", (("ids", 0),)),
        Node("kernel", "ps:0"),
        Node("loss", "worker", (("rows", 0), ("kernel", 0))),
        Node("update", "ps:0", (("loss", 0),)),
    ]
    sent = messages.messages(nodes)
    assert [len(each.outputs) for each in sent] == [1, 2, 1]
