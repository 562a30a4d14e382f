"""Choice of the layers to split: if a step is faster so, or only fits so."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tfdist.research.model_parallel.fit import DoesNotFitError
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.plan import LayerPlan
from tfdist.research.model_parallel.split_graph import (
    pairs,
    resolved_split,
    splittable,
    with_parts,
)
from tfdist.research.model_parallel.splitting.split import Split

Splits = Mapping[str, Split]

# A simulated gain of less is none.
_LESS = 0.99
# Layers smaller than this share of all weights are left whole.
_SHARE = 0.05
_TRIES = 12
WHOLE = "without split layers"


def split_and_place(
    graph: LayerGraph,
    parts: int,
    most_memory: float,
    place: Callable[[LayerGraph, Splits], LayerPlan],
) -> LayerPlan:
    """Places a graph with some of its layers split, if that is faster or fits only so.

    A layer that may be split has a twentieth of all weights at least. One that fits no
    device must be. Then all are split that may, then each pair and each by itself, the
    largest first: what makes the step a hundredth faster, or fits at last, is kept.

    `place` is given how layers are split, too; `compared` of the plan has the seconds
    without. Cost: at most 14 placements. Raises DoesNotFitError if it fits neither way.
    """
    possible = _possible(graph, parts)
    nodes = {node.name: node for node in graph.nodes}
    needed = {
        name: split
        for name, split in possible.items()
        if nodes[name].weights + nodes[name].activations > most_memory
    }
    best, error = _tried(graph, {}, place)
    whole = best
    for more in _tries(graph, possible, needed):
        split = {**(best.split if best else needed), **more}
        if best is not None and split == best.split:
            continue
        found, failed = _tried(graph, split, place)
        error = error or failed
        if found and (best is None or found.seconds < _LESS * best.seconds):
            best = found
    if best is None:
        assert error is not None
        raise error
    if best is whole:
        return best
    # Placements by hand, which know of no parts, are compared with this one, too.
    compared = (whole or best).compared
    seconds = whole.seconds if whole else None
    return replace(best, compared={**compared, WHOLE: seconds})


def _possible(graph: LayerGraph, parts: int) -> dict[str, Split]:
    nodes = {node.name: node for node in graph.nodes}
    total = sum({node.unit: node.weights for node in graph.nodes}.values())
    found = {}
    for name in splittable(graph):
        matrix = nodes[name].matrix
        most = min(parts, max(matrix.rows, matrix.columns)) if matrix else 0
        if most >= 2 and nodes[name].weights >= _SHARE * total:
            found[name] = Split(most)
    return resolved_split(graph, found)


def _tries(graph: LayerGraph, possible: Splits, needed: Splits) -> Iterator[Splits]:
    """Yields the layers to split in addition."""
    if not possible:
        return
    yield needed
    yield possible
    paired = pairs(graph, possible)
    groups = [{name, paired.get(name, name)} for name in possible]
    groups = [g for g in groups if len(g) == 2] + [{name} for name in possible]
    for group in groups[:_TRIES]:
        yield {name: possible[name] for name in possible if name in group}


def _tried(
    graph: LayerGraph,
    split: Splits,
    place: Callable[[LayerGraph, Splits], LayerPlan],
) -> tuple[LayerPlan | None, DoesNotFitError | None]:
    try:
        return place(with_parts(graph, split), split), None
    except DoesNotFitError as error:
        return None, error
