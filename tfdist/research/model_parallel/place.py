"""`tfdist.research.place_layers`: which device computes which layer.

A step is simulated: each device computes one layer at a time, forward and backward, while
tensors travel. A first placement gives each layer to the device that would finish it first
(HEFT); local search improves it, and every other start that it knows, within the memory of
the devices. So no placement that the plan compares with, and that fits, is faster.

Calls of one layer stay together. Without microbatches, only branches of a model are
computed at the same time: a chain is fastest on one device, if it fits there.

The graph of a Keras model is measured first, which needs TensorFlow.

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling
for heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3),
2002.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tfdist.research.model_parallel.choose_split import split_and_place
from tfdist.research.model_parallel.devices import (
    Device,
    Links,
    check_devices,
    checked_links,
)
from tfdist.research.model_parallel.fit import place_by_memory
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.heft import place_by_finish_time
from tfdist.research.model_parallel.plan import BY_HAND, EQUAL_STAGES, LayerPlan
from tfdist.research.model_parallel.search import EFFORT, improve
from tfdist.research.model_parallel.splitting.split import Split
from tfdist.research.model_parallel.stages import place_in_stages
from tfdist.research.model_parallel.step import simulate
from tfdist.research.model_parallel.work import Assignment, Work

if TYPE_CHECKING:
    import keras

# A fraction of the effort for each way to split layers.
_LESS = 4


def place_layers(
    model: "LayerGraph | keras.Model",
    devices: Sequence[Device],
    network: Links | None = None,
    *,
    microbatches: int = 1,
    by_hand: Mapping[str, str] | None = None,
    batch_size: int = 32,
    split: int = 1,
    effort: int = EFFORT,
    seed: int = 0,
) -> LayerPlan:
    """Decides which device computes which layer, so that a step takes least time.

        devices = [tfdist.research.Device("fast"), tfdist.research.Device("slow", speed=0.5)]
        plan = tfdist.research.place_layers(model, devices, tfdist.research.Links(1e9, 1e-4))
        print(plan)

    Cost: simulated steps with as many tasks as `effort` says, a few microseconds each.

    Args:
        model: The layers and their costs; or a Keras model, built from `keras.Input` or
            Sequential, whose costs `tfdist.research.measure_layers` measures here and now.
        devices: The devices, with their speed relative to the measured one.
        network: The links between them; None for links that cost nothing.
        microbatches: How many parts of a batch follow each other; each is assumed to
            take its share of the batch's time.
        by_hand: A placement to compare with: the name of a device by the name of a
            layer, or by a pattern such as `"block1_*"`; the first that matches counts.
        batch_size: The number of examples, where costs are measured.
        split: Into how many parts large `Dense` and `Embedding` layers may be split. Some
            are, if the simulated step is faster so, or if the model fits only so; the
            plan's `split` says which, and `tfdist.research.split_layers(model, plan)` does it.
        effort: How many tasks the search simulates, at most about.
        seed: The search's seed.

    Raises:
        DoesNotFitError: If the devices do not have the memory; it says how much is
            missing.
        UnknownGraphError: If the graph of the model's layers is not known.
        ValueError: If devices, links, `by_hand` or numbers are not as described.
        TypeError: If an argument has the wrong type.
    """
    _check_counts(split, microbatches)
    links = checked_links(network)
    devices = check_devices(devices, links)
    work = Work(_graph_of(model, batch_size), devices, links, microbatches)
    if split == 1:
        return _place(work, by_hand, effort, seed)
    return _place_in_parts(work, split, by_hand, effort, seed)


def _check_counts(split: int, microbatches: int) -> None:
    if isinstance(split, bool) or not isinstance(split, int) or split < 1:
        raise ValueError(
            "split is the number of parts into which a layer may be split, 1 for none; "
            f"received {split!r}"
        )
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1; received {microbatches!r}")


def _graph_of(model: "LayerGraph | keras.Model", batch_size: int) -> LayerGraph:
    if isinstance(model, LayerGraph):
        return model
    # Imported late: a graph is placed without TensorFlow.
    from tfdist.research.model_parallel.measured import measure_layers

    return measure_layers(model, batch_size=batch_size)


def _place_in_parts(
    work: Work, parts: int, by_hand: Mapping[str, str] | None, effort: int, seed: int
) -> LayerPlan:
    """Places layers, some of them in parts, which `by_hand` does not know."""

    def place(graph: LayerGraph, split: Mapping[str, Split]) -> LayerPlan:
        in_parts = replace(work, graph=graph)
        if split:
            return replace(_place(in_parts, None, effort // _LESS, seed), split=split)
        return _place(in_parts, by_hand, effort, seed)

    # A device without a limit has room for every layer in one piece.
    most = max(
        math.inf if each.memory is None else each.memory for each in work.devices
    )
    return split_and_place(work.graph, parts, most, place)


def _place(
    work: Work, by_hand: Mapping[str, str] | None, effort: int, seed: int
) -> LayerPlan:
    others = dict(_others(work))
    if by_hand is not None:
        others[BY_HAND] = _by_hand(work, by_hand)
    starts = [each for each in others.values() if each and work.fits(each)]
    by_finish_time = place_by_finish_time(work)
    if work.fits(by_finish_time):
        starts.insert(0, by_finish_time)
    if not starts:
        starts = [place_by_memory(work)]
    best = improve(work, starts, effort=effort, seed=seed)
    units, devices = work.graph.units, work.devices
    return LayerPlan(
        work.graph,
        devices,
        work.links,
        {u: devices[d].name for u, d in zip(units, best, strict=True)},
        work.microbatches,
        {
            name: simulate(work, each).seconds if each and work.fits(each) else None
            for name, each in others.items()
        },
    )


def _others(work: Work) -> Iterator[tuple[str, Assignment | None]]:
    """Yields the placements that every plan is compared with."""
    units = len(work.graph.units)
    for number, device in enumerate(work.devices):
        yield f"all on {device.name}", (number,) * units
    yield EQUAL_STAGES, place_in_stages(work)


def _by_hand(work: Work, by_hand: Mapping[str, str]) -> Assignment:
    numbers = {device.name: at for at, device in enumerate(work.devices)}
    unknown = [name for name in by_hand.values() if name not in numbers]
    if unknown:
        raise ValueError(
            f"by_hand names the device {unknown[0]!r}; the devices are {list(numbers)}"
        )
    found, used = [], set()
    for unit in work.graph.units:
        pattern = unit if unit in by_hand else None
        pattern = pattern or next((p for p in by_hand if fnmatchcase(unit, p)), None)
        if pattern is None:
            raise ValueError(
                f"by_hand has no device for layer {unit!r}: name every layer, or end "
                'with a pattern for the rest, as {"*": device}'
            )
        used.add(pattern)
        found.append(numbers[by_hand[pattern]])
    if idle := [
        pattern for pattern in by_hand if pattern not in used and pattern != "*"
    ]:
        raise ValueError(
            f"each pattern of by_hand must match a layer that none before it matches; "
            f"received {idle[0]!r}: the first layers are {list(work.graph.units[:5])}"
        )
    return tuple(found)
