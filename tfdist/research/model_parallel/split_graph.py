"""A graph of layers in which some are split into parts, which are placed one by one."""

from collections.abc import Mapping
from dataclasses import replace

from tfdist.research.model_parallel.graph import (
    LayerEdge,
    LayerGraph,
    LayerGraphError,
    LayerNode,
)
from tfdist.research.model_parallel.splitting.split import (
    COLUMNS,
    ROWS,
    Split,
    resolved,
)


def resolved_split(graph: LayerGraph, split: Mapping[str, Split]) -> dict[str, Split]:
    """Returns how layers are split, with what they are split by."""
    nodes = {node.name: node for node in graph.nodes}
    possible = splittable(graph)
    found = {}
    for name, each in split.items():
        if name not in possible:
            why = (
                "is none that can be split" if name in nodes else "is not in the graph"
            )
            raise LayerGraphError(
                f"layer {name!r} {why}: a node that states its matrix can be, if it is "
                f"called once; here {', '.join(possible) or 'there is none'}"
            )
        matrix = nodes[name].matrix
        assert matrix is not None
        found[name] = resolved(each, matrix, f"layer {name!r}")
    return found


def splittable(graph: LayerGraph) -> list[str]:
    """Returns the layers that can be split, those with the most bytes of weights first."""
    calls: dict[str, int] = {}
    for node in graph.nodes:
        calls[node.unit] = calls.get(node.unit, 0) + 1
    found = [n for n in graph.nodes if n.matrix and calls[n.unit] == 1]
    return [node.name for node in sorted(found, key=lambda node: -node.weights)]


def with_parts(graph: LayerGraph, split: Mapping[str, Split]) -> LayerGraph:
    """Returns the graph with parts and a join in place of each layer that is split.

    A part takes its share of the layer's seconds and weights. The inputs and outputs of
    parts are as `tfdist.research.split_layers` says. A layer by rows that alone takes the output
    of one by columns, in as many parts, takes that of its parts.

    >>> from tfdist.research.model_parallel.splitting.split import LayerMatrix
    >>> graph = LayerGraph(
    ...     (LayerNode("in", 0.0), LayerNode("big", 4.0, matrix=LayerMatrix(8, 8))),
    ...     (LayerEdge("in", "big", size=32),),
    ... )
    >>> [(e.source, e.target) for e in with_parts(graph, {"big": Split(2, "rows")}).edges]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('in', 'big_part_0'), ('in', 'big_part_1'),
     ('big_part_0', 'big_join'), ('big_part_1', 'big_join')]
    """
    return _Splitting(graph, split).run() if split else graph


def pairs(graph: LayerGraph, split: Mapping[str, Split]) -> dict[str, str]:
    """Returns the layers by rows that take the parts of one by columns, and that one."""
    targets: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    for edge in graph.edges:
        targets.setdefault(edge.source, []).append(edge.target)
        sources.setdefault(edge.target, []).append(edge.source)
    nodes = {node.name: node for node in graph.nodes}
    found = {}
    for name, each in split.items():
        source = sources.get(name, [""])[0]
        matrix, before = nodes[name].matrix, getattr(nodes.get(source), "matrix", None)
        if (
            each.by == ROWS
            and matrix
            and not matrix.is_lookup
            and before
            # Softmax, for one, needs all outputs of the layer, which are joined first.
            and not before.is_whole
            and split.get(source) == Split(each.parts, COLUMNS)
            and targets[source] == [name]
        ):
            found[name] = source
    return found


class _Splitting:
    def __init__(self, graph: LayerGraph, split: Mapping[str, Split]) -> None:
        self._graph, self._split = graph, split
        self._nodes = {node.name: node for node in graph.nodes}
        self._paired = pairs(graph, split)
        self._edges: list[LayerEdge] = []
        # Outputs of their own for what is cut, after those that there are.
        self._outputs: dict[str, int] = {}
        for edge in graph.edges:
            count = max(self._outputs.get(edge.source, 0), edge.output + 1)
            self._outputs[edge.source] = count

    def run(self) -> LayerGraph:
        nodes: list[LayerNode] = []
        for node in self._graph.nodes:
            nodes += self._pieces(node) if node.name in self._split else [node]
        for edge in self._graph.edges:
            self._lead(edge)
        for name in self._split:
            self._join(name)
        return LayerGraph(tuple(nodes), tuple(self._edges))

    def _pieces(self, node: LayerNode) -> list[LayerNode]:
        split = self._split[node.name]
        # By rows, a part gives a summand of the whole output; by columns, a share.
        given = self._given(node) if split.by == ROWS else node.activations
        share = 1 if split.by == ROWS else split.parts
        parts = [
            LayerNode(
                name,
                node.forward / split.parts,
                node.backward / split.parts,
                -(-node.weights // split.parts),
                -(-given // share),
            )
            for name in part_names(node.name, split)
        ]
        # The layer by rows takes the parts one by one, so nothing joins them.
        if node.name in self._paired.values():
            return parts
        return [*parts, LayerNode(join_name(node.name), 0.0, activations=given)]

    def _given(self, node: LayerNode) -> int:
        """Returns the bytes of a layer's output."""
        sizes = [e.size for e in self._graph.edges if e.source == node.name]
        return max([*sizes, 0]) or node.activations

    def _lead(self, edge: LayerEdge) -> None:
        """Leads an edge to the parts of a layer, and from its join."""
        source = join_name(edge.source) if edge.source in self._split else edge.source
        split = self._split.get(edge.target)
        if split is None:
            self._edges.append(replace(edge, source=source))
            return
        parts = part_names(edge.target, split)
        if edge.target in self._paired:
            column = self._split[edge.source]
            for its, part in zip(part_names(edge.source, column), parts, strict=True):
                size = -(-edge.size // split.parts)
                self._edges.append(LayerEdge(its, part, size, edge.has_gradient))
            return
        matrix = self._nodes[edge.target].matrix
        is_cut = split.by == ROWS and not (matrix and matrix.is_lookup)
        for part in parts:
            piece = replace(edge, source=source, target=part)
            # A share of the input is a tensor of its own.
            if is_cut:
                size, output = -(-edge.size // split.parts), self._outputs[edge.source]
                self._outputs[edge.source] += 1
                piece = replace(piece, size=size, output=output)
            self._edges.append(piece)

    def _join(self, name: str) -> None:
        if name in self._paired.values():
            return
        node, split = self._nodes[name], self._split[name]
        size = self._given(node)
        size = size if split.by == ROWS else -(-size // split.parts)
        ways = [edge for edge in self._graph.edges if edge.source == name]
        is_trained = any(edge.has_gradient for edge in ways) or node.backward > 0
        for part in part_names(name, split):
            self._edges.append(LayerEdge(part, join_name(name), size, is_trained))


def part_names(name: str, split: Split) -> list[str]:
    """Returns the names of the parts of a layer, as `tfdist.research.split_layers` gives them."""
    return [f"{name}_part_{at}" for at in range(split.parts)]


def join_name(name: str) -> str:
    """Returns the name of the join of a layer's parts."""
    return f"{name}_join"
