"""A graph of layers on some devices, by numbers, for simulation and search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerEdge, LayerGraph

Assignment = tuple[int, ...]
"""The device of each unit of `LayerGraph.units`, by their numbers."""


class Tensor(NamedTuple):
    """One output of a node, and the nodes that need it, by their places in the order.

    From the nodes in `trained`, a gradient of the same size (bytes) comes back.
    """

    source: int
    size: int
    targets: tuple[int, ...]
    trained: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """The computations and messages of one step, and the devices and links it uses.

    Nodes are numbered in the order of `LayerGraph.order`. With M microbatches, task `2
    n m + v` of n nodes is the forward computation of node v for microbatch m, and task
    `2 n m + n + v` the backward one; each takes 1/M of what the batch would.
    """

    graph: LayerGraph
    devices: tuple[Device, ...]
    links: Links
    microbatches: int = 1

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self.graph.nodes)

    @property
    def num_tasks(self) -> int:
        """The number of tasks of a step."""
        return 2 * self.num_nodes * self.microbatches

    @cached_property
    def seconds(self) -> tuple[list[float], list[float]]:
        """Seconds of one microbatch of each node at speed 1, forward and backward."""
        nodes = {node.name: node for node in self.graph.nodes}
        ordered = [nodes[name] for name in self.graph.order]
        parts = self.microbatches
        return (
            [node.forward / parts for node in ordered],
            [node.backward / parts for node in ordered],
        )

    @cached_property
    def unit_of(self) -> list[int]:
        """The unit of each node."""
        numbers = {unit: at for at, unit in enumerate(self.graph.units)}
        nodes = {node.name: node for node in self.graph.nodes}
        return [numbers[nodes[name].unit] for name in self.graph.order]

    @cached_property
    def nodes_of(self) -> list[list[int]]:
        """The nodes of each unit."""
        nodes: list[list[int]] = [[] for _ in self.graph.units]
        for node, unit in enumerate(self.unit_of):
            nodes[unit].append(node)
        return nodes

    @cached_property
    def unit_seconds(self) -> list[float]:
        """Seconds of the batch of each unit at speed 1."""
        forward, backward = self.seconds
        return [
            self.microbatches * sum(forward[v] + backward[v] for v in nodes)
            for nodes in self.nodes_of
        ]

    @cached_property
    def unit_bytes(self) -> list[int]:
        """Bytes of each unit: weights and slots once, and the activations of its calls."""
        nodes = {node.name: node for node in self.graph.nodes}
        weights = dict.fromkeys(self.graph.units, 0)
        kept = dict.fromkeys(self.graph.units, 0)
        for node in nodes.values():
            weights[node.unit] = node.weights
            kept[node.unit] += node.activations
        return [weights[unit] + kept[unit] for unit in self.graph.units]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors that some node needs, of one microbatch."""
        numbers = {name: at for at, name in enumerate(self.graph.order)}
        uses: dict[tuple[str, int], list[LayerEdge]] = {}
        for edge in self.graph.edges:
            uses.setdefault((edge.source, edge.output), []).append(edge)
        return [
            Tensor(
                numbers[source],
                -(-edges[0].size // self.microbatches),
                tuple(sorted(numbers[each.target] for each in edges)),
                tuple(sorted(numbers[e.target] for e in edges if e.has_gradient)),
            )
            for (source, _), edges in uses.items()
        ]

    @cached_property
    def outputs(self) -> list[list[int]]:
        """The tensors of each node, by their numbers."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for at, tensor in enumerate(self.tensors):
            found[tensor.source].append(at)
        return found

    @cached_property
    def inputs(self) -> list[list[int]]:
        """The tensors that each node needs, by their numbers."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for at, tensor in enumerate(self.tensors):
            for target in tensor.targets:
                found[target].append(at)
        return found

    @cached_property
    def chains(self) -> list[list[int]]:
        """The units of the chain without branches that each unit is in."""
        after: list[set[int]] = [set() for _ in self.graph.units]
        before: list[set[int]] = [set() for _ in self.graph.units]
        for tensor in self.tensors:
            source = self.unit_of[tensor.source]
            for target in {self.unit_of[t] for t in tensor.targets} - {source}:
                after[source].add(target)
                before[target].add(source)
        chains: list[list[int]] = [[unit] for unit in range(len(after))]
        for unit in range(len(after)):
            # Chains are joined where one unit alone follows, and follows nothing else.
            following = next(iter(after[unit])) if len(after[unit]) == 1 else unit
            if len(before[following]) == 1 and chains[following] is not chains[unit]:
                chains[unit].extend(chains[following])
                for each in chains[following]:
                    chains[each] = chains[unit]
        return chains

    @cached_property
    def memories(self) -> list[float]:
        """Bytes of each device; infinite where there is no limit."""
        return [math.inf if d.memory is None else d.memory for d in self.devices]

    @cached_property
    def rates(self) -> list[list[tuple[float, float]]]:
        """Seconds per byte and latency of the link between each two devices."""
        return [
            [
                (1 / link.bandwidth, link.latency)
                for target in self.devices
                for link in [self.links.of(source.name, target.name)]
            ]
            for source in self.devices
        ]

    def used(self, assignment: Sequence[int]) -> list[int]:
        """Returns the bytes that an assignment takes on each device."""
        used = [0] * len(self.devices)
        for unit, device in enumerate(assignment):
            used[device] += self.unit_bytes[unit]
        return used

    def fits(self, assignment: Sequence[int]) -> bool:
        """Returns True if no device holds more than it has room for."""
        used = self.used(assignment)
        return all(u <= m for u, m in zip(used, self.memories, strict=True))

    @cached_property
    def ranks(self) -> tuple[list[float], list[float]]:
        """The upward rank of each forward and each backward task of one microbatch.

        The longest way from the start of a task to the end of the step, with the mean of
        all devices and of all links (Topcuoglu et al. 2002, equation 3).
        """
        slowness = fmean(1 / device.speed for device in self.devices)
        pairs = [
            self.rates[a][b]
            for a in range(len(self.devices))
            for b in range(len(self.devices))
            if a != b
        ] or [(0.0, 0.0)]
        per_byte, latency = (fmean(each) for each in zip(*pairs, strict=True))
        return self._longest_ways(slowness, per_byte, latency)

    def _longest_ways(
        self, slowness: float, per_byte: float, latency: float
    ) -> tuple[list[float], list[float]]:
        """Returns the seconds from the start of each task to the end of the step."""
        forward, backward = self.seconds
        up, down = [0.0] * self.num_nodes, [0.0] * self.num_nodes
        # Backward tasks first: they come last in a step, in the order of the nodes.
        for v in range(self.num_nodes):
            ways = [
                latency + per_byte * tensor.size + down[tensor.source]
                for tensor in map(self.tensors.__getitem__, self.inputs[v])
                if v in tensor.trained
            ]
            down[v] = slowness * backward[v] + max(ways, default=0.0)
        for v in reversed(range(self.num_nodes)):
            ways = [
                latency + per_byte * tensor.size + up[target]
                for tensor in map(self.tensors.__getitem__, self.outputs[v])
                for target in tensor.targets
            ]
            up[v] = slowness * forward[v] + max([down[v], *ways])
        return up, down

    @cached_property
    def preference(self) -> list[int]:
        """The place of each task in the order in which devices prefer them, 0 first.

        By upward rank; with several microbatches, forward tasks come before backward
        ones and earlier microbatches before later ones, as in GPipe.
        """
        n, parts = self.num_nodes, self.microbatches
        up, down = self.ranks
        keys: list[tuple[float, ...]] = []
        for part in range(parts):
            # The last numbers put equal ranks, of nodes that take no time, in order.
            phases = ((0, part), (1, part)) if parts > 1 else ((), ())
            keys += [(*phases[0], -up[v], v) for v in range(n)]
            keys += [(*phases[1], -down[v], 2 * n - v) for v in range(n)]
        place = [0] * len(keys)
        for at, task in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
            place[task] = at
        return place

    @cached_property
    def bound(self) -> float:
        """A lower bound of the seconds of a step under any assignment.

        The longest chain of tasks of one microbatch on the fastest device, without any
        link; all work, evenly on all devices; or the largest unit. Whichever is most.
        """
        fastest = max(device.speed for device in self.devices)
        up, _ = self._longest_ways(1.0, 0.0, 0.0)
        speeds = sum(device.speed for device in self.devices)
        return max(
            max(up) / fastest,
            self.graph.seconds / speeds,
            max(self.unit_seconds) / fastest,
        )
