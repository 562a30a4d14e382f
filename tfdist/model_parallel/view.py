"""A placement of layers as a table, as a summary, and as a picture of its timeline. Pure."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from tfdist import _picture
from tfdist.model_parallel.plan import PLACED, LayerMessage, LayerPlan, LayerTask
from tfdist.planning.view import bar, render, table_of

_FORWARD, _BACKWARD, _SENT = "tab:blue", "tab:orange", "tab:gray"


def summary(plan: LayerPlan) -> str:
    """Returns the seconds of a step beside other placements, and a bar per device."""
    longest = max(plan.seconds, *(each or 0.0 for each in plan.compared.values()))
    rows = [(PLACED, plan.seconds), *plan.compared.items(), ("lower bound", plan.bound)]
    times = table_of("a step", ">ms", "")
    for name, seconds in rows:
        if seconds is None:
            times.add_row(name, "", "does not fit")
        else:
            times.add_row(name, f"{1e3 * seconds:,.3f}", bar(seconds, longest))
    used = table_of("device", ">speed", ">layers", ">busy", ">MB", ">of MB")
    for device in plan.devices:
        limit = device.memory
        used.add_row(
            device.name,
            f"{device.speed:g}",
            str(len(plan.stages[device.name])),
            f"{plan.busy[device.name]:.0%}",
            f"{plan.bytes_per_device[device.name] / 1e6:,.1f}",
            "" if limit is None else f"{limit / 1e6:,.1f}",
        )
    return f"{render(times)}{render(used)}{_sent(plan)}\n"


def _sent(plan: LayerPlan) -> str:
    path = plan.critical_path
    computed = sum(
        each.end - each.start for each in path if isinstance(each, LayerTask)
    )
    share = computed / plan.seconds if plan.seconds else 1.0
    return (
        f"{len(plan.messages):,} messages of {plan.bytes_sent / 1e6:,.2f} MB in all; "
        f"{share:.0%} of the critical path is computation"
    )


def table(plan: LayerPlan) -> str:
    """Returns a table of every call of a layer, its costs and its device."""
    found = table_of(
        "layer", "device", ">forward ms", ">backward ms", ">MB", "on the critical path"
    )
    critical = {each.node for each in plan.tasks if each.is_critical}
    nodes = {node.name: node for node in plan.graph.nodes}
    for name in plan.graph.order:
        node = nodes[name]
        found.add_row(
            name,
            plan.placed[node.unit],
            f"{1e3 * node.forward:,.3f}",
            f"{1e3 * node.backward:,.3f}",
            f"{(node.weights + node.activations) / 1e6:,.2f}",
            "yes" if name in critical else "",
        )
    split = [
        f"{name} is split by {each.by} into {each.parts} parts.\n"
        for name, each in plan.split.items()
    ]
    return render(found) + "".join(split)


def plot(plan: LayerPlan, path: str | os.PathLike[str]) -> None:
    """Draws when each device computes and each link sends, as a PNG file.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    _picture.check_path(path)
    links = sorted({(each.source, each.target) for each in plan.messages})
    labels = [device.name for device in plan.devices]
    labels += [f"{source} to {target}" for source, target in links]
    rows: dict[object, int] = {d.name: at for at, d in enumerate(plan.devices)}
    rows |= {link: len(plan.devices) + at for at, link in enumerate(links)}
    figure = _picture.new_figure(10, 1.5 + 0.45 * len(labels))
    axes = figure.subplots()
    for is_backward, color, label in (
        (False, _FORWARD, "forward"),
        (True, _BACKWARD, "backward"),
    ):
        chosen = [each for each in plan.tasks if each.is_backward == is_backward]
        _bars(axes, [(rows[e.device], e.start, e.end) for e in chosen], color, label)
    sent = [(rows[e.source, e.target], e.start, e.arrival) for e in plan.messages]
    _bars(axes, sent, _SENT, "sent")
    _draw_path(axes, plan.critical_path, rows)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * plan.seconds or None)
    axes.set_xlabel("ms")
    axes.set_title(_title(plan), fontsize="medium")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)
    _picture.save(figure, path)


def _title(plan: LayerPlan) -> str:
    others = [f"{name}: {1e3 * s:,.1f}" for name, s in plan.compared.items() if s]
    return f"{1e3 * plan.seconds:,.1f} ms a step ({', '.join(others)})"


def _bars(
    axes: Any, spans: Sequence[tuple[int, float, float]], color: str, label: str
) -> None:
    for row in sorted({row for row, _, _ in spans}):
        axes.broken_barh(
            [(1e3 * a, 1e3 * (b - a)) for r, a, b in spans if r == row and b > a],
            (row - 0.4, 0.8),
            facecolor=color,
            edgecolor="white",
            linewidth=0.2,
            label=label,
        )
        label = "_"  # Once in the legend.


def _draw_path(
    axes: Any, path: Iterable[LayerTask | LayerMessage], rows: dict[object, int]
) -> None:
    """Draws a line through what is on the critical path, from the start to the end."""
    times, heights = [], []
    for each in path:
        if isinstance(each, LayerTask):
            row, end = rows[each.device], each.end
        else:
            row, end = rows[each.source, each.target], each.arrival
        times += [1e3 * each.start, 1e3 * end]
        heights += [row, row]
    axes.plot(times, heights, color="black", linewidth=1.2, label="critical path")
