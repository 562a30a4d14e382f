"""A simulated step of a plan: when each device computes, and each link sends."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist._support import views
from tfdist.research.model_parallel.step import SimulatedStep
from tfdist.research.model_parallel.work import Work

_FORWARD, _BACKWARD, _SENT = "tab:blue", "tab:orange", "tab:gray"


@dataclass(frozen=True)
class LayerTask:
    """One computation of a simulated step.

    Attributes:
        device: The name of the device.
        node: The node, a call of a layer.
        is_backward: Whether it is the backward computation.
        microbatch: The microbatch, counted from 0.
        start: Its start, in seconds.
        end: Its end, in seconds.
        is_critical: Whether it is on the critical path.
    """

    device: str
    node: str
    is_backward: bool
    microbatch: int
    start: float
    end: float
    is_critical: bool


@dataclass(frozen=True)
class LayerMessage:
    """One tensor that a simulated step sends to another device.

    Attributes:
        source: The device that sends it.
        target: The device that receives it.
        node: The node that computed it, or whose output's gradient it is.
        is_backward: Whether it is the gradient.
        microbatch: The microbatch, counted from 0.
        size: Bytes.
        start: The time at which its first byte leaves, in seconds.
        arrival: The time at which it has arrived, in seconds.
        is_critical: Whether it is on the critical path.
    """

    source: str
    target: str
    node: str
    is_backward: bool
    microbatch: int
    size: int
    start: float
    arrival: float
    is_critical: bool


def tasks_of(work: Work, run: SimulatedStep) -> tuple[LayerTask, ...]:
    """Returns the tasks of a step, by the time of their start."""
    n, order, critical = work.num_nodes, work.graph.order, set(run.critical_path())
    found = []
    for number, (start, end) in enumerate(zip(run.start, run.end, strict=True)):
        part, at = divmod(number, 2 * n)
        device = work.devices[run.device[at % n]].name
        is_critical = number in critical
        found.append(
            LayerTask(device, order[at % n], at >= n, part, start, end, is_critical)
        )
    return tuple(sorted(found, key=lambda each: (each.start, each.end)))


def messages_of(work: Work, run: SimulatedStep) -> tuple[LayerMessage, ...]:
    """Returns the messages of a step, in the order of their computation."""
    critical, found = set(run.critical_path()), []
    for number, each in enumerate(run.messages):
        tensor = work.tensors[each.tensor]
        found.append(
            LayerMessage(
                work.devices[each.source].name,
                work.devices[each.target].name,
                work.graph.order[tensor.source],
                each.is_gradient,
                each.microbatch,
                tensor.size,
                each.start,
                each.arrival,
                -2 - number in critical,
            )
        )
    return tuple(found)


def critical(
    tasks: Iterable[LayerTask], messages: Iterable[LayerMessage]
) -> tuple[LayerTask | LayerMessage, ...]:
    """Returns the tasks and messages that each waited for the last, to the end."""
    everything: tuple[LayerTask | LayerMessage, ...] = (*tasks, *messages)
    found = [each for each in everything if each.is_critical]
    return tuple(
        sorted(found, key=lambda each: (each.start, isinstance(each, LayerTask)))
    )


def plot(
    path: str | os.PathLike[str],
    title: str,
    devices: Iterable[str],
    tasks: Sequence[LayerTask],
    messages: Sequence[LayerMessage],
) -> None:
    """Draws a row per device and per link that is used, as a PNG file."""
    views.check_picture_path(path)
    links = sorted({(each.source, each.target) for each in messages})
    names = [*devices, *links]
    rows: dict[object, int] = {name: row for row, name in enumerate(names)}
    labels = [each if isinstance(each, str) else " to ".join(each) for each in names]
    figure = views.new_figure(10, 1.5 + 0.45 * len(labels))
    axes = figure.subplots()
    for is_backward, color, label in (
        (False, _FORWARD, "forward"),
        (True, _BACKWARD, "backward"),
    ):
        chosen = [each for each in tasks if each.is_backward == is_backward]
        _bars(axes, [(rows[e.device], e.start, e.end) for e in chosen], color, label)
    sent = [(rows[e.source, e.target], e.start, e.arrival) for e in messages]
    _bars(axes, sent, _SENT, "sent")
    _draw_path(axes, critical(tasks, messages), rows)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * max(each.end for each in tasks) or None)
    axes.set_xlabel("ms")
    axes.set_title(title, fontsize="medium")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)
    views.save_picture(figure, path)


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
