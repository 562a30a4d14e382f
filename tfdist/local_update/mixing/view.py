"""Graphs as a table and as a picture."""

import math
import os
from collections.abc import Sequence

from tfdist._support import views
from tfdist._support.views import render, table_of
from tfdist.local_update.mixing.topology import Topology

HALF, THOUSANDTH = 0.5, 1e-3


def table(topologies: Sequence[Topology], megabytes: float) -> str:
    """Returns the rate and the bytes of each graph, and of an all-reduce next to them.

    `megabytes` is the size of a model, in 10^6 bytes.
    """
    participants = len(topologies[0].participants)
    found = table_of(
        "graph",
        ">models in",
        ">gap",
        ">rounds to 1/2",
        ">rounds to 1e-3",
        ">MB in a round",
        ">MB to 1e-3",
        title=f"{participants} participants, {megabytes:g} MB",
    )
    for each in topologies:
        rounds = each.rounds_to_shrink(THOUSANDTH)
        received = each.bytes_per_round(megabytes)
        found.add_row(
            each.name,
            f"{each.degree:g}",
            f"{each.spectral_gap:.4f}",
            f"{each.rounds_to_shrink(HALF):,}",
            f"{rounds:,}",
            f"{received:,.1f}",
            f"{rounds * received:,.1f}",
        )
    ideal = 2 * (participants - 1) / participants
    bytes_in = f"{ideal * megabytes:,.1f}"
    found.add_row(
        "Mean: a ring all-reduce",
        f"{ideal:.3g}",
        "1.0000",
        "1",
        "1",
        bytes_in,
        bytes_in,
    )
    return render(found) + (
        "The distance of all models from their mean, as the gap predicts it; "
        "models and MB that the busiest participant receives.\n"
    )


def plot(topologies: Sequence[Topology], path: str | os.PathLike[str]) -> None:
    """Draws each graph on a circle, with its gap and the models that travel.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    views.check_picture_path(path)
    columns = min(3, len(topologies))
    rows = math.ceil(len(topologies) / columns)
    figure = views.new_figure(3.4 * columns, 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
        axes.set_aspect("equal")
    for axes, topology in zip(panels, topologies, strict=False):
        places = _places(topology)
        for edge in {tuple(sorted(each)) for each in topology.edges}:
            axes.plot(*zip(*(places[end] for end in edge), strict=True), "0.6", lw=0.8)
        axes.plot(*zip(*places.values(), strict=True), "o", color="tab:blue")
        axes.set_title(
            f"{topology.name}\ngap {topology.spectral_gap:.3f}, "
            f"{topology.degree:g} models in",
            fontsize=10,
        )
    views.save_picture(figure, path)


def _places(topology: Topology) -> dict[int, tuple[float, float]]:
    """Points on a circle; the centre of a star is in the middle."""
    everyone = topology.participants
    hubs = [
        each for each in everyone if len(topology.neighbours(each)) == len(everyone) - 1
    ]
    border = [each for each in everyone if hubs != [each]]
    angles = (2 * math.pi * place / len(border) for place in range(len(border)))
    places = {
        each: (math.sin(angle), math.cos(angle))
        for each, angle in zip(border, angles, strict=True)
    }
    return {each: places.get(each, (0.0, 0.0)) for each in everyone}
