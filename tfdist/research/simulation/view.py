"""Predicted speedup curves as tables and as a picture."""

import os
from collections.abc import Sequence

from tf_config.speedup import Speedup
from tfdist._support import views
from tfdist._support.views import render, table_of
from tfdist.research.simulation.prediction import Curve

# Advice by a part of a bound's name.
_WHAT_HELPS = {
    "ps's link": "more ps, faster links, or fewer bytes",
    "of the fullest ps": "more ps",
    "chief's interpreter": "more work in each step: larger batches",
    "chief's link": "data that the workers read themselves",
    "the cores": "more cores, or hosts of their own",
    "the policy": "a looser bound, or backup workers",
    "end of the epoch": "longer epochs",
    "steps themselves": "more workers",
    "the links": "more workers, faster links, or fewer bytes",
}


def table(curve: Curve) -> str:
    """Returns the points of a curve as a table, and the costs behind it."""
    right = (">workers", ">measured steps/s", ">predicted", ">error", ">speedup")
    found = table_of(*right, "bound", "what helps", title=title_of(curve))
    first = curve.points[0]
    for point in curve.points:
        error = point.error
        found.add_row(
            f"{point.workers:,}",
            "" if point.measured is None else f"{point.measured:.1f}",
            f"{point.predicted:.1f}",
            "prediction" if error is None else f"{error:+.0%}",
            f"{point.predicted / first.predicted * first.workers:.2f}",
            point.bound,
            what_helps(point.bound),
        )
    return render(found) + _costs(curve)


def title_of(curve: Curve) -> str:
    """Returns the curve's name in a table or a picture."""
    return f"{curve.policy}, {curve.num_ps} ps"


def what_helps(bound: str) -> str:
    """Returns advice to raise the steps per second if something limits them."""
    return next(helps for part, helps in _WHAT_HELPS.items() if part in bound)


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
    """Draws measured points, with lines and open marks for predictions."""
    figure = views.new_figure(7, 4.5)
    axes = figure.subplots()
    for curve in curves:
        workers = [point.workers for point in curve.points]
        [line] = axes.plot(
            workers,
            [point.predicted for point in curve.points],
            "--",
            marker="o",
            markerfacecolor="none",
            label=f"{title_of(curve)}: predicted",
        )
        runs = [
            (run.workers, run.steps_per_second)
            for run in measured.runs
            if (run.consistency, measured.num_ps) == (curve.policy, curve.num_ps)
            and run.epochs
        ]
        if runs:
            axes.plot(
                *zip(*runs, strict=True),
                "o",
                color=line.get_color(),
                label=f"{title_of(curve)}: measured",
            )
    axes.set_xscale("log", base=2)
    sizes = sorted({point.workers for curve in curves for point in curve.points})
    axes.set_xticks(sizes, [str(each) for each in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers")
    axes.set_ylabel("steps per second")
    axes.legend()
    views.save_picture(figure, path)
