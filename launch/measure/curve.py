"""The speedup curve as a table and as a picture."""

import io
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import rich.box
import rich.table

from tf_config.speedup import Run, Speedup


def table(measured: Speedup) -> rich.table.Table:
    """Returns a row per policy and number of workers: medians over the repeats."""
    target = measured.target
    found = rich.table.Table(box=rich.box.ROUNDED)
    headings = ["policy", "workers", "s/epoch", "steps/s", "speedup"]
    if target:
        headings += [f"epochs to {target[0]} {target[1]:g}", "s to it"]
    headings += ["CPU s/epoch: chief", "ps", "workers", "runs"]
    for heading in headings:
        found.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in measured.policies:
        for workers in measured.sizes:
            if runs := measured.of(policy, workers):
                found.add_row(*_cells(measured, policy, runs))
        found.add_section()
    return found


def _cells(measured: Speedup, policy: str, runs: list[Run]) -> list[str]:
    rate = median(runs, lambda run: run.steps_per_second)
    speedup = speedup_of(measured, policy, runs[0].workers)
    cells = [
        policy,
        str(runs[0].workers),
        f"{median(runs, lambda run: run.seconds_per_epoch):.2f}",
        f"{rate:.1f}",
        "" if speedup is None else f"{speedup:.2f}",
    ]
    if measured.target:
        reached = [each for run in runs if (each := run.to_target(*measured.target))]
        if len(reached) < len(runs):
            cells += ["not reached", ""]
        else:
            cells += [f"{statistics.median(epochs for epochs, _ in reached):g}"]
            cells += [f"{statistics.median(seconds for _, seconds in reached):.1f}"]
    for job in ("chief", "ps", "worker"):
        cells.append(f"{median(runs, _cpu_per_epoch(job)):.2f}")
    return [*cells, str(len(runs))]


def _cpu_per_epoch(job: str) -> Callable[[Run], float]:
    return lambda run: run.total_of("cpu", job) / len(run.steady)


def median(runs: list[Run], number: Callable[[Run], float]) -> float:
    """Returns the median of a number over runs."""
    return statistics.median(number(run) for run in runs)


def speedup_of(measured: Speedup, policy: str, workers: int) -> float | None:
    """Returns the steps per second against those of the smallest size.

    The median of the ratios of runs of the same repeat, which were measured close to each
    other. None if no repeat has both.
    """
    smallest = {run.repeat: run for run in measured.of(policy, measured.sizes[0])}
    ratios = [
        run.steps_per_second / smallest[run.repeat].steps_per_second
        for run in measured.of(policy, workers)
        if run.repeat in smallest
    ]
    return statistics.median(ratios) if ratios else None


def plot(measured: Speedup, path: str | os.PathLike[str]) -> None:
    """Draws the steps per second against the number of workers, a line per policy.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for policy in measured.policies:
        sizes = [each for each in measured.sizes if measured.of(policy, each)]
        runs = [measured.of(policy, each) for each in sizes]
        rates = [median(each, lambda run: run.steps_per_second) for each in runs]
        [line] = axes.plot(sizes, rates, marker="o", label=policy)
        for size, each in zip(sizes, runs, strict=True):
            axes.plot(
                [size] * len(each),
                [run.steps_per_second for run in each],
                ".",
                color=line.get_color(),
                alpha=0.4,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(measured.sizes, [str(each) for each in measured.sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers")
    axes.set_ylabel("steps per second")
    axes.legend()
    # Drawn in memory, so that an error leaves no truncated file.
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    Path(path).write_bytes(picture.getvalue())


def check_can_plot(path: str) -> str:
    """Returns what is wrong with a plot's file, before anything is measured; or ''."""
    if Path(path).suffix.lower() != ".png":
        return f"a curve is drawn as a PNG file, such as curve.png; received {path!r}"
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return "a plot needs matplotlib: pip install matplotlib, or leave out --plot"
    return ""
