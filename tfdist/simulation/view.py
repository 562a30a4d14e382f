"""Predicted speedup curves as tables and as a picture."""

import io
import os
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table

from tf_config.speedup import Speedup
from tfdist import _picture
from tfdist.simulation.prediction import Curve


def table(curve: Curve) -> str:
    """Returns the points of a curve as a table, and the costs behind it."""
    found = rich.table.Table(box=rich.box.ROUNDED, title=curve.policy)
    for heading in ("workers", "measured steps/s", "predicted", "error", "speedup"):
        found.add_column(heading, justify="right")
    found.add_column("bound")
    first = curve.points[0]
    for point in curve.points:
        error = point.error
        found.add_row(
            str(point.workers),
            "" if point.measured is None else f"{point.measured:.1f}",
            f"{point.predicted:.1f}",
            "prediction" if error is None else f"{error:+.0%}",
            f"{point.predicted / first.predicted * first.workers:.2f}",
            point.bound,
        )
    text = io.StringIO()
    # Rich shrinks a table to the width of its console.
    rich.console.Console(file=text, width=200).print(found)
    return text.getvalue() + _costs(curve)


def _costs(curve: Curve) -> str:
    cost, points = curve.cost, curve.points
    cores = [f"{each.cores:.1f}" for each in points if each.measured is not None]
    lines = [
        f"a step, from the runs with 1 worker: {1e3 * cost.worker_cpu:.1f} ms of CPU on "
        f"the worker (on up to {cost.parallelism:.1f} cores), {1e3 * cost.ps_cpu:.1f} ms "
        f"on the ps, {1e3 * cost.chief_cpu:.1f} ms on the chief, "
        f"{1e3 * cost.idle:.1f} ms idle;",
        f"{cost.pulled / 1e6:.2f} MB pulled, {cost.pushed / 1e6:.2f} MB pushed, "
        f"{cost.fed / 1e6:.2f} MB from the chief; {cost.steps_per_message} steps per "
        f"message; {cost.fullest_ps:.0%} of the bytes on the fullest ps",
    ]
    if cores:
        lines.append(f"cores that other programs left: {', '.join(cores)}")
    return "\n".join(lines) + "\n"


def plot(
    measured: Speedup, curves: Sequence[Curve], path: str | os.PathLike[str]
) -> None:
    """Draws measured points, with lines and open marks for predictions.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    _picture.check_path(path)
    figure = _picture.new_figure(7, 4.5)
    axes = figure.subplots()
    for curve in curves:
        workers = [point.workers for point in curve.points]
        [line] = axes.plot(
            workers,
            [point.predicted for point in curve.points],
            "--",
            marker="o",
            markerfacecolor="none",
            label=f"{curve.policy}: predicted",
        )
        runs = [
            (run.workers, run.steps_per_second)
            for run in measured.runs
            if run.consistency == curve.policy and run.epochs
        ]
        if runs:
            axes.plot(
                *zip(*runs, strict=True),
                "o",
                color=line.get_color(),
                label=f"{curve.policy}: measured",
            )
    axes.set_xscale("log", base=2)
    sizes = sorted({point.workers for curve in curves for point in curve.points})
    axes.set_xticks(sizes, [str(each) for each in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers")
    axes.set_ylabel("steps per second")
    axes.legend()
    _picture.save(figure, path)
