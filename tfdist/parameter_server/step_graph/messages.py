"""Decides which tensors of a step travel together, from one task to another.

Pure: it knows nodes and tasks, and nothing of TensorFlow.

A tensor that is used on another task than it is computed on costs a message, and on a
local network a message costs far more than its bytes. So messages are few: the *level*
of a node is how many messages precede it at the latest, if the longest chain of messages
is to stay as long as it is. A tensor can be sent at any level from that of the node that
computes it to the one before it is first used, and tensors that can be sent at the same
level travel together.

No cycle can result: a message waits for nodes of its own level at most, and what it
brings is used at higher levels only.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist._support.walks import reached

Output = tuple[str, int]
"""An output of a node: the node's name and the output's index."""

LEAST_IN_TURN = 1e-3
"""The least seconds of a message that is sent in its turn.

To wait for another costs an answer, 0.2 ms on a local network.
"""


@dataclass(frozen=True)
class Node:
    """A node of a step's graph.

    Attributes:
        name: Its name.
        task: The task that computes it.
        inputs: The outputs that it uses.
        after: The names of the nodes that it has to wait for.
        handles: The names of the nodes whose resources it uses, where they are.
    """

    name: str
    task: str
    inputs: tuple[Output, ...] = ()
    after: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskMessage:
    """The tensors that one task sends to another at one time.

    Attributes:
        sender: The task that computes it.
        receiver: The task that uses it.
        level: How many messages precede it at most.
        outputs: The tensors.
        signals: Nodes that the receiver has to wait for, whose tensors it does not use.
    """

    sender: str
    receiver: str
    level: int
    outputs: tuple[Output, ...]
    signals: tuple[str, ...] = ()


def needed(nodes: Iterable[Node], roots: Iterable[str]) -> list[Node]:
    """Returns the nodes that the roots depend on, in their order."""
    nodes = list(nodes)
    by_name = {node.name: node for node in nodes}
    found = reached(roots, lambda name: _sources(by_name[name]))
    return [node for node in nodes if node.name in found]


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Returns the nodes, each after all that it depends on."""
    by_name = {node.name: node for node in nodes}
    placed: set[str] = set()
    order: list[Node] = []
    for node in by_name.values():
        # Without recursion: the graph of a step may be deeper than Python's stack.
        stack = [(node, iter(_sources(node)))]
        while stack:
            current, sources = stack[-1]
            if current.name in placed:
                stack.pop()
                continue
            following = next((s for s in sources if s not in placed), None)
            if following is not None:
                stack.append((by_name[following], iter(_sources(by_name[following]))))
                continue
            placed.add(current.name)
            order.append(current)
            stack.pop()
    return order


def messages(nodes: Iterable[Node]) -> list[TaskMessage]:
    """Returns the messages of a step, in an order in which they can be sent."""
    nodes = in_order(nodes)
    tasks = {node.name: node.task for node in nodes}
    levels = _latest_levels(nodes, tasks)
    # The first and the last level at which to send each tensor (an output) or signal
    # (the name of a node), by sender and receiver.
    spans: dict[tuple[str, str], dict[Output | str, tuple[int, int]]] = {}
    for node in nodes:
        everything: tuple[Output | str, ...] = (*node.inputs, *node.after)
        for sent in everything:
            source = sent if isinstance(sent, str) else sent[0]
            if tasks[source] != node.task:
                of_pair = spans.setdefault((tasks[source], node.task), {})
                _, last = of_pair.get(sent, (0, levels[node.name]))
                last = min(last, levels[node.name] - 1)
                of_pair[sent] = (levels[source], last)
    return sorted(
        (
            TaskMessage(
                *pair,
                level,
                tuple(each for each in together if not isinstance(each, str)),
                tuple(each for each in together if isinstance(each, str)),
            )
            for pair, of_pair in spans.items()
            for level, together in _together(of_pair)
        ),
        key=lambda message: (message.level, message.sender, message.receiver),
    )


def _together(
    spans: Mapping[Output | str, tuple[int, int]],
) -> Iterator[tuple[int, list[Output | str]]]:
    """Yields levels, and what to send at each, so that there are as few as possible."""
    waiting = sorted(spans, key=lambda sent: spans[sent][1])
    while waiting:
        # Whatever ends first must be sent by then, and all else that is ready with it.
        level = spans[waiting[0]][1]
        yield level, [sent for sent in waiting if spans[sent][0] <= level]
        waiting = [sent for sent in waiting if spans[sent][0] > level]


def in_turn(
    task: str,
    sent: Sequence[TaskMessage],
    seconds: Sequence[float],
    nodes: Iterable[Node],
) -> dict[int, int]:
    """Returns which large messages of a task wait until another has arrived.

    The link of a task carries what it sends at one time either side by side, so that all
    arrive at the end, or one after the other, so that those who receive the first can
    answer while the next is in flight. A link that carries both directions at once is
    then used in both. First goes what is computed first: the gradients of the last
    layers, while those of the first are computed. After the priorities of ByteScheduler
    (Peng et al., SOSP 2019) and P3 (Jayarajan et al., SysML 2019).

    Args:
        task: The task that sends them: the worker.
        sent: All messages of a step.
        seconds: How long the link takes for each of them.
        nodes: All nodes of the step, in an order in which they can be computed.
    """
    computed = {node.name: place for place, node in enumerate(nodes)}

    def ready(index: int) -> tuple[int, int]:
        sources = (*(name for name, _ in sent[index].outputs), *sent[index].signals)
        return sent[index].level, max(computed[each] for each in sources)

    large = [
        i
        for i, message in enumerate(sent)
        if message.sender == task and seconds[i] >= LEAST_IN_TURN
    ]
    return {
        after: before
        for before, after in itertools.pairwise(sorted(large, key=ready))
        if sent[before].level == sent[after].level
    }


def via(task: str, nodes: Iterable[Node]) -> list[Node]:
    """Sends other tasks' messages through one task, if that saves messages.

    The learning rate, say, lives on one ps, and all ps use it. Where the worker receives
    a message from the one and sends one to the other anyway, it can pass it on.

    Args:
        task: The task to pass tensors on: the worker.
        nodes: All nodes of the step.

    Returns:
        The nodes, with a *relay* of one input and one output, named `relay_of` the
        output, for each tensor that takes the detour.
    """
    nodes = list(nodes)
    direct = messages(nodes)
    relayed = {
        (output, message.receiver)
        for message in direct
        if task not in (message.sender, message.receiver)
        for output in message.outputs
    }
    if not relayed:
        return nodes
    detour = list(_with_relays(task, nodes, relayed))
    # A detour is one message longer where the worker had nothing to send.
    return detour if len(messages(detour)) < len(direct) else nodes


def relay_of(output: Output) -> str:
    """Names the node that passes an output on."""
    return f"relay/{output[0]}/{output[1]}"


def _with_relays(
    task: str, nodes: list[Node], relayed: set[tuple[Output, str]]
) -> Iterator[Node]:
    for output in dict.fromkeys(output for output, _ in relayed):
        yield Node(relay_of(output), task, (output,))
    for node in nodes:
        inputs = tuple(
            (relay_of(each), 0) if (each, node.task) in relayed else each
            for each in node.inputs
        )
        yield replace(node, inputs=inputs)


def _latest_levels(nodes: list[Node], tasks: Mapping[str, str]) -> dict[str, int]:
    earliest: dict[str, int] = {}
    for node in nodes:
        levels = (earliest[each] + cost for each, cost in _costs(node, tasks))
        earliest[node.name] = max(levels, default=0)
    # As late as the longest chain allows: then a tensor has the most others to go with.
    latest = dict.fromkeys(earliest, max(earliest.values(), default=0))
    for node in reversed(nodes):
        for source, cost in _costs(node, tasks):
            latest[source] = min(latest[source], latest[node.name] - cost)
    return latest


def _costs(node: Node, tasks: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yields the dependencies of a node, and 1 for each that takes a message."""
    for source in (*(name for name, _ in node.inputs), *node.after):
        yield source, int(tasks[source] != node.task)
    for source in node.handles:
        yield source, 0


def _sources(node: Node) -> tuple[str, ...]:
    return (*(name for name, _ in node.inputs), *node.after, *node.handles)
