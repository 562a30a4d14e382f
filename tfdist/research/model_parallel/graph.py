"""A model as a graph of layers with their costs: plain data."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from tfdist._support.errors import Error
from tfdist.research.model_parallel.splitting.split import LayerMatrix


class LayerGraphError(Error, ValueError):
    """A graph of layers that is none: the message says what to change."""


class UnknownGraphError(Error, ValueError):
    """A model whose graph of layers is not known, such as a subclassed one."""


@dataclass(frozen=True)
class LayerNode:
    """One call of a layer, and its costs.

    Attributes:
        name: The name, unlike that of any other node.
        forward: Seconds of its forward computation on a device of speed 1.
        backward: Seconds of its backward computation there.
        weights: Bytes of the layer's weights and their optimizer slots.
        activations: Bytes that are kept from its forward to its backward computation.
        layer: The layer that it calls, if another node calls the same one; both stay on
            one device, and its weights count once.
        matrix: The matrix of its weights, if it can be split.

    Raises:
        LayerGraphError: If a number is negative or not finite.
    """

    name: str
    forward: float
    backward: float = 0.0
    weights: int = 0
    activations: int = 0
    layer: str = ""
    matrix: LayerMatrix | None = None

    def __post_init__(self) -> None:
        for each in ("forward", "backward", "weights", "activations"):
            _check_number(f"{each} of node {self.name!r}", getattr(self, each))

    @property
    def unit(self) -> str:
        """The name of what is placed as one: the layer, or the node itself."""
        return self.layer or self.name


@dataclass(frozen=True)
class LayerEdge:
    """A tensor that one node computes and another one needs.

    Edges with the same source and output carry the same tensor: it reaches a device once,
    and the gradients of its uses there return as one sum.

    Attributes:
        source: The node that computes it.
        target: The node that needs it.
        size: The bytes of the tensor.
        has_gradient: Whether a gradient of as many bytes comes back. None does through
            integers, or to what is not trained.
        output: The number of the source's output, from 0.

    Raises:
        LayerGraphError: If a number is negative or not finite.
    """

    source: str
    target: str
    size: int = 0
    has_gradient: bool = True
    output: int = 0

    def __post_init__(self) -> None:
        where = f"the edge from {self.source!r} to {self.target!r}"
        _check_number(f"the size of {where}", self.size)
        _check_number(f"the output of {where}", self.output)


@dataclass(frozen=True)
class LayerGraph:
    """A model as nodes that compute and edges that carry their results.

    >>> graph = LayerGraph(
    ...     (LayerNode("a", 1.0, 2.0), LayerNode("b", 1.0, 2.0)),
    ...     (LayerEdge("a", "b", size=4000),),
    ... )
    >>> graph.order, graph.seconds
    (('a', 'b'), 6.0)

    Attributes:
        nodes: The calls of the layers.
        edges: The tensors that one needs of another.

    Raises:
        LayerGraphError: If there is no node, two have the same name, an edge has no node or
            occurs twice, edges of one tensor differ in its size, calls of one layer
            differ in its weights, or nodes need each other in a circle.
    """

    nodes: tuple[LayerNode, ...]
    edges: tuple[LayerEdge, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise LayerGraphError("a graph needs at least one node")
        _check_names(self)
        _check_tensors(self)
        weights: dict[str, int] = {}
        for node in self.nodes:
            if weights.setdefault(node.unit, node.weights) != node.weights:
                raise LayerGraphError(
                    f"the calls of layer {node.unit!r} must state the same weights; "
                    f"received {weights[node.unit]} and {node.weights} bytes"
                )
        if len(self.order) < len(self.nodes):
            circle = next(n.name for n in self.nodes if n.name not in set(self.order))
            raise LayerGraphError(
                f"node {circle!r} needs, through others, what it computes itself: a "
                "graph of layers has no circles; make one node of what repeats"
            )

    @property
    def seconds(self) -> float:
        """Seconds of one step on a device of speed 1: the sum of all nodes."""
        return sum(node.forward + node.backward for node in self.nodes)

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units that are placed as one: layers, in the order of `order`."""
        unit_of = {node.name: node.unit for node in self.nodes}
        return tuple(dict.fromkeys(unit_of[name] for name in self.order))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The nodes, each after those that it needs, with branches in one piece."""
        targets: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        missing: Counter[str] = Counter()
        for source, target in sorted({(e.source, e.target) for e in self.edges}):
            missing[target] += 1
            targets[source].append(target)
        place = {node.name: at for at, node in enumerate(self.nodes)}
        for each in targets.values():
            each.sort(key=place.__getitem__, reverse=True)
        # The node that became ready last comes first: that follows a branch to its end.
        ready = [node.name for node in reversed(self.nodes) if not missing[node.name]]
        order = []
        while ready:
            name = ready.pop()
            order.append(name)
            for target in targets[name]:
                missing[target] -= 1
                if not missing[target]:
                    ready.append(target)
        return tuple(order)


def _check_number(what: str, number: float) -> None:
    if not 0 <= number < float("inf"):
        raise LayerGraphError(
            f"{what} must be a finite number >= 0; received {number!r}"
        )


def _check_names(graph: LayerGraph) -> None:
    counts = Counter(node.name for node in graph.nodes)
    for name, count in counts.items():
        if count > 1:
            raise LayerGraphError(
                f"{count} nodes have the name {name!r}: name each call of a layer, and "
                "say with layer= which of them are calls of the same one"
            )
    for edge in graph.edges:
        for name in (edge.source, edge.target):
            if name not in counts:
                raise LayerGraphError(
                    f"the edge from {edge.source!r} to {edge.target!r} has no node "
                    f"{name!r}: add the node"
                )


def _check_tensors(graph: LayerGraph) -> None:
    tensors: dict[tuple[str, int], LayerEdge] = {}
    seen: set[tuple[str, int, str]] = set()
    for edge in graph.edges:
        first = tensors.setdefault((edge.source, edge.output), edge)
        if first.size != edge.size:
            raise LayerGraphError(
                f"output {edge.output} of {edge.source!r} has {first.size} bytes for "
                f"{first.target!r}, and {edge.size} for {edge.target!r}: it is one "
                "tensor; give another tensor another output="
            )
        key = (edge.source, edge.output, edge.target)
        if key in seen:
            raise LayerGraphError(
                f"the edge from {edge.source!r} to {edge.target!r} is there twice: state "
                "a tensor once for each node that needs it"
            )
        seen.add(key)
