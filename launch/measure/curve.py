"""The speedup curve as a table."""

import statistics
from collections.abc import Callable

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
