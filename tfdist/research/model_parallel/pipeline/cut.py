"""Cuts of a model into consecutive stages that minimize the time of a step."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from tfdist.research.model_parallel.devices import Device, Links
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.pipeline.chain import Chain, Ends
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.pipeline.step_time import Execution, step_seconds
from tfdist.research.model_parallel.stages import ROUNDING, shortest

# The most cuts that are tried, fewer if their tasks (with a message each) and tensors
# are more than this effort in all: about a second.
_TRIED = 1_500
_EFFORT = 1_000_000
_LIMITS = 8
# The memory of devices is not known. What equal stages have room for, others have too, up
# to a quarter more.
_MORE = 1.25

Found = tuple[float, Ends]
"""The seconds of a cut, and where it is."""


def choose_cut(
    graph: LayerGraph,
    devices: Sequence[Device],
    links: Links,
    execution: Execution,
    together: Iterable[Collection[int]] = (),
) -> list[int]:
    """Returns the stage of each node: consecutive ones, the fastest of simulated steps.

    Layers are taken in the order in which they are given, and in that of
    `LayerGraph.order`, which follows a branch to its end. Of each order all cuts are
    simulated; or if these are many, those that a search comes to from stages of equal
    seconds. So no such stages are faster. No stage has more than 1.25 times the bytes of
    weights, or of activations, that the largest of these has; the memory of devices does
    not count. Nodes that are together, by number, are in one stage.

    Cost: at most 1,500 simulated steps for each order, of `step_seconds`.

    >>> from tfdist.research.model_parallel.graph import LayerEdge, LayerNode
    >>> from tfdist.research.model_parallel.schedule import gpipe
    >>> graph = LayerGraph(
    ...     tuple(LayerNode(name, 1.0, 2.0) for name in "abcd"),
    ...     (LayerEdge("a", "b", 1), LayerEdge("b", "c", 9), LayerEdge("c", "d", 1)),
    ... )
    >>> devices, execution = [Device("x"), Device("y")], Execution(gpipe(2, 4))
    >>> choose_cut(graph, devices, Links(bandwidth=1e3), execution)
    [0, 0, 1, 1]
    >>> choose_cut(graph, devices, Links(bandwidth=1.0), execution)
    [0, 1, 1, 1]
    """
    numbers = {node.name: at for at, node in enumerate(graph.nodes)}
    orders = tuple(numbers.values()), tuple(numbers[name] for name in graph.order)
    groups = list(together)
    chains = [Chain(graph, e, groups, devices, links) for e in dict.fromkeys(orders)]
    most = max(len(chain.seconds) for chain in chains)
    if not 1 <= len(devices) <= most:
        raise PipelineError(
            f"stages={len(devices)} needs a layer for each stage; received a model of "
            f"{most} layers that can be apart (calls of one layer, and what is between "
            f"them, cannot). Choose between 1 and {most} stages"
        )
    chains = [chain for chain in chains if len(chain.seconds) >= len(devices)]
    return _fastest(chains, execution)


def _fastest(chains: Sequence[Chain], execution: Execution) -> list[int]:
    best: Found = math.inf, ()
    stages: list[int] = []
    for chain in chains:
        found = _Search(chain, execution).best()
        if not stages or _faster(best, found) is found:
            best, stages = found, chain.stages(found[1])
    return stages


def equal_ends(seconds: Sequence[float], count: int) -> Ends:
    """Cuts a sequence into consecutive parts, the longest of which is shortest.

    >>> equal_ends([1, 1, 1, 3], 2)
    (3,)
    """
    ends = shortest(lambda most: _filled(seconds, count, most), float(sum(seconds)))
    assert ends is not None
    return ends


def _filled(seconds: Sequence[float], count: int, most: float) -> Ends | None:
    """Fills one part after another with at most `most` seconds; none stays empty."""
    ends: list[int] = []
    spent = 0.0
    for at, each in enumerate(seconds):
        is_full = spent + each > most * (1 + ROUNDING)
        if at and (is_full or len(seconds) - at < count - len(ends)):
            ends.append(at)
            spent = 0.0
        spent += each
    return tuple(ends) if len(ends) < count else None


class _Search:
    def __init__(self, chain: Chain, execution: Execution) -> None:
        self._chain, self._execution = chain, execution
        self._count = execution.schedule.num_stages
        self._pieces = len(chain.seconds)
        size = 2 * len(execution.order) + chain.num_tensors
        self._tries = min(_TRIED, _EFFORT // size)
        self._known: dict[Ends, float] = {}
        self._equal = equal_ends(chain.seconds, self._count)
        self._limits = [_MORE * each for each in chain.largest(self._equal)]

    def best(self) -> Found:
        """Returns the seconds of the fastest cut that is found, and where it is."""
        best = self._tried(self._equal)
        if math.comb(self._pieces - 1, self._count - 1) <= self._tries:
            for ends in combinations(range(1, self._pieces), self._count - 1):
                best = _faster(best, self._tried(ends))
            return best
        # From the fastest on, since the tries are limited.
        for _, start in sorted(map(self._tried, self._starts())):
            best = _faster(best, self._descended(start))
        return best

    def _tried(self, ends: Ends) -> Found:
        if ends not in self._known:
            largest = self._chain.largest(ends)
            fits = all(a <= b for a, b in zip(largest, self._limits, strict=True))
            self._known[ends] = (
                step_seconds(self._execution, self._chain.costs(ends))
                if fits
                else math.inf
            )
        return self._known[ends], ends

    def _starts(self) -> set[Ends]:
        """Returns equal stages, also such that are cut only where little crosses."""
        seconds, crossing = self._chain.seconds, self._chain.crossing
        sizes = sorted(crossing, reverse=True)
        spare = len(sizes) - (self._count - 1)
        starts = {self._equal}
        # Limits on what may cross: from any place down to the few where least does.
        for limit in {sizes[spare * step // _LIMITS] for step in range(_LIMITS + 1)}:
            bounds = [0, *(at for at, size in enumerate(crossing, 1) if size <= limit)]
            parts = [
                sum(seconds[a:b])
                for a, b in zip(bounds, [*bounds[1:], self._pieces], strict=True)
            ]
            starts.add(tuple(bounds[end] for end in equal_ends(parts, self._count)))
        return starts

    def _descended(self, ends: Ends) -> Found:
        """Takes the nearest cut that is faster, until none is or the tries are spent."""
        best = self._tried(ends)
        before = None
        while before != best:
            before = best
            for near in _near(best[1], self._pieces):
                if len(self._known) >= self._tries:
                    return best
                best = _faster(best, self._tried(near))
                if best != before:
                    break
        return best


def _faster(best: Found, other: Found) -> Found:
    """Returns the other cut if it is faster by more than rounding."""
    return other if other[0] < (1 - 1e-9) * best[0] else best


def _near(ends: Ends, pieces: int) -> Iterator[Ends]:
    """Yields cuts near one, the nearest first: some ends in a row, moved together."""
    bounds = [0, *ends, pieces]
    rows = list(combinations(range(1, len(bounds)), 2))
    for shift in range(1, pieces):
        for first, last in rows:
            for by in (shift, -shift):
                moved = [end + by for end in bounds[first:last]]
                if bounds[first - 1] < moved[0] and moved[-1] < bounds[last]:
                    yield (*bounds[1:first], *moved, *bounds[last:-1])
