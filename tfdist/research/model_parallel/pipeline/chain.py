"""A model in one order of its layers, and the costs of its stages."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.pipeline.step_time import StageCosts

OUTPUTS = "outputs"
"""The name of a node that is no layer: it takes a model's outputs, in the last stage."""

Ends = tuple[int, ...]
"""The end of each stage but the last: the number of the next one's first piece."""


class _Tensor(NamedTuple):
    """A tensor from one piece to others, its bytes, and whether it has a gradient."""

    source: int
    targets: list[int]
    size: int
    has_gradient: bool


class Chain:
    """The nodes of a graph in an order, as pieces that no cut divides.

    Costs are those of one microbatch. The order has each node after those that it needs.
    Nodes that are together are in one piece, with all between them.
    """

    def __init__(
        self,
        graph: LayerGraph,
        order: Sequence[int],
        together: Iterable[Collection[int]],
        devices: Sequence[Device],
        links: Links,
    ) -> None:
        place = {node: at for at, node in enumerate(order)}
        closed = {place[at] for at, n in enumerate(graph.nodes) if n.name == OUTPUTS}
        for group in together:
            at = [place[node] for node in group]
            closed.update(range(min(at) + 1, max(at) + 1))
        # A piece begins wherever no group is open; cuts are there only.
        numbers = list(accumulate(int(at not in closed) for at in range(len(order))))
        self._piece_of = [numbers[place[node]] - 1 for node in range(len(order))]
        of_pieces = [[0.0] * numbers[-1] for _ in range(4)]
        units: set[str] = set()
        for node, piece in zip(graph.nodes, self._piece_of, strict=True):
            # Calls of one layer are in one piece, which has its weights once.
            weights = 0 if node.unit in units else node.weights
            units.add(node.unit)
            of_node = node.forward, node.backward, weights, node.activations
            for numbers_of, number in zip(of_pieces, of_node, strict=True):
                numbers_of[piece] += number
        self.seconds = [sum(each) for each in zip(*of_pieces[:2], strict=True)]
        # Up to each piece, of seconds forward and backward, and of the bytes of both.
        self._sums = [[0.0, *accumulate(each)] for each in of_pieces]
        self._speeds = [device.speed for device in devices]
        self._links = [[links.of(a.name, b.name) for b in devices] for a in devices]
        self._tensors = list(self._leaving(graph))

    def _leaving(self, graph: LayerGraph) -> Iterable[_Tensor]:
        pieces = {
            node.name: piece
            for node, piece in zip(graph.nodes, self._piece_of, strict=True)
        }
        tensors: dict[tuple[str, int], _Tensor] = {}
        for edge in graph.edges:
            new = _Tensor(pieces[edge.source], [], edge.size, edge.has_gradient)
            tensor = tensors.setdefault((edge.source, edge.output), new)
            tensor.targets.append(pieces[edge.target])
        for each in tensors.values():
            each.targets.sort()
            # A tensor that stays in its piece crosses no cut.
            if each.targets[-1] > each.source:
                yield each

    @property
    def num_tensors(self) -> int:
        """The number of tensors that a cut could divide from their uses."""
        return len(self._tensors)

    @property
    def crossing(self) -> list[int]:
        """The bytes, both ways, that cross each place between two pieces."""
        changes = [0] * len(self.seconds)
        for source, targets, size, has_gradient in self._tensors:
            changes[source] += size * (1 + has_gradient)
            changes[targets[-1]] -= size * (1 + has_gradient)
        return list(accumulate(changes))[:-1]

    def stages(self, ends: Ends) -> list[int]:
        """Returns the stage of each node."""
        stages = self._stages_of_pieces(ends)
        return [stages[piece] for piece in self._piece_of]

    def _stages_of_pieces(self, ends: Ends) -> list[int]:
        bounds = pairwise([0, *ends, len(self.seconds)])
        return [stage for stage, (a, b) in enumerate(bounds) for _ in range(a, b)]

    def _in_stages(self, sums: Sequence[float], ends: Ends) -> list[float]:
        bounds = [0, *ends, len(self.seconds)]
        return [sums[b] - sums[a] for a, b in pairwise(bounds)]

    def largest(self, ends: Ends) -> list[float]:
        """Returns the bytes of weights, and of activations, of the stage with the most."""
        return [max(self._in_stages(each, ends)) for each in self._sums[2:]]

    def costs(self, ends: Ends) -> StageCosts:
        """Returns the costs of the stages of a cut."""
        stage_of = self._stages_of_pieces(ends)
        sizes: dict[tuple[int, int], int] = {}
        for source, targets, size, has_gradient in self._tensors:
            here = stage_of[source]
            if stage_of[targets[-1]] == here:
                continue
            for there in {stage_of[each] for each in targets} - {here}:
                sizes[here, there] = sizes.get((here, there), 0) + size
                if has_gradient:
                    sizes[there, here] = sizes.get((there, here), 0) + size
        link = self._links
        forward, backward = (
            [
                seconds / speed
                for seconds, speed in zip(
                    self._in_stages(sums, ends), self._speeds, strict=True
                )
            ]
            for sums in self._sums[:2]
        )
        return StageCosts(
            forward,
            backward,
            {(a, b): size / link[a][b].bandwidth for (a, b), size in sizes.items()},
            {(a, b): link[a][b].latency for a, b in sizes},
        )
