"""Tables and a plot of the runs of local_updates.py: pure functions of its JSON.

    python benchmarks/local_updates_report.py           # into docs/measured-local-updates.md
    python benchmarks/local_updates_report.py --check   # exits with status 1 if they differ

No number there is typed by hand. The plot stores a digest of the data that it shows.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = pages.DOCS / "local_updates.png"

TARGET, FEWER_BYTES, SEEDS = 0.95, 50.0, 5
SYNCHRONOUS, DILOCO = "synchronous", "diloco_100"
LABELS = {
    SYNCHRONOUS: "synchronous (MultiWorkerMirroredStrategy)",
    "mean_1": "mean, H=1",
    "mean_10": "mean, H=10",
    "mean_100": "mean, H=100",
    "mean_500": "mean, H=500",
    DILOCO: "DiLoCo, H=100",
    "diloco_100_int8": "DiLoCo, H=100, int8",
    "diloco_100_overlap": "DiLoCo, H=100, overlap",
    "diloco_100_fragments": "DiLoCo, H=100, overlap, 4 fragments",
    "ring_10": "gossip on a ring, H=10",
    "exponential_10": "gossip, exponential, H=10",
}
# Student's t, two-sided 95%, by degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Run = Mapping[str, Any]


def of(done: Mapping[str, Any], config: str) -> list[Run]:
    """Returns the runs of a configuration, by seed."""
    chosen = [each for each in done["runs"] if each["config"] == config]
    return sorted(chosen, key=lambda run: run["seed"])


def measured(done: Mapping[str, Any]) -> list[str]:
    """Returns the configurations that have runs, in the order of the table."""
    return [each for each in LABELS if of(done, each)]


def accuracies(run: Run) -> list[tuple[int, float]]:
    """Returns the epochs after which models were validated, from 1, and the accuracies."""
    found = [each["accuracy"] for each in run["epochs"]]
    return [(i, value) for i, value in enumerate(found, 1) if value is not None]


def last_accuracy(run: Run) -> float:
    """Returns the accuracy of the model that `fit` returns."""
    return accuracies(run)[-1][1]


def seconds(run: Run, epochs: int | None = None) -> float:
    """Returns the seconds of the first epochs, or of all, without validation."""
    return sum(each["seconds"] for each in run["epochs"][:epochs])


def seconds_to_target(run: Run) -> float | None:
    """Returns the seconds until a validation has found the target; None if none has."""
    reached = (epoch for epoch, value in accuracies(run) if value >= TARGET)
    epoch = next(reached, None)
    return None if epoch is None else seconds(run, epoch)


def megabytes(run: Run) -> float:
    """Returns what a worker received during the whole job: the mean of all workers."""
    return statistics.mean(run["received"]) / 1e6


def pairs(done: Mapping[str, Any], config: str) -> list[tuple[Run, Run]]:
    """Returns runs of a configuration, each with the synchronous one of its seed."""
    others = {run["seed"]: run for run in of(done, SYNCHRONOUS)}
    return [
        (run, others[run["seed"]]) for run in of(done, config) if run["seed"] in others
    ]


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Returns the 95% interval of a mean difference, by Student's t for pairs.

    None if there are fewer than two differences.
    """
    if len(differences) < 2:
        return None
    t = _T95[min(len(differences) - 1, len(_T95)) - 1]
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    half = t * spread / math.sqrt(len(differences))
    return mean - half, mean + half


def fewer_bytes(done: Mapping[str, Any], config: str) -> float:
    """Returns how many times fewer bytes workers received than in synchronous runs."""
    ratios = [megabytes(other) / megabytes(run) for run, other in pairs(done, config)]
    return statistics.median(ratios) if ratios else math.nan


def table(done: Mapping[str, Any]) -> str:
    """Returns a row per configuration."""
    rows = []
    for config in measured(done):
        runs = of(done, config)
        to_target = [seconds_to_target(run) for run in runs]
        reached = [each for each in to_target if each is not None]
        cell = f"{statistics.median(reached):.0f}" if reached else "not reached"
        if 0 < len(reached) < len(runs):
            cell += f" ({len(reached)} of {len(runs)} runs)"
        rows.append(
            [
                LABELS[config],
                len(runs),
                f"{statistics.mean(map(last_accuracy, runs)):.4f}",
                f"{statistics.median(map(megabytes, runs)):.2f}",
                f"{fewer_bytes(done, config):.1f}",
                f"{statistics.median(map(seconds, runs)):.0f}",
                cell,
            ]
        )
    heads = ["", "runs", "accuracy", "MB received by a worker", "times fewer"]
    return pages.table([*heads, "seconds", f"seconds to {TARGET:g}"], rows)


def targets(done: Mapping[str, Any]) -> str:
    """Returns what was to be reached by DiLoCo with H=100, and whether it was."""
    paired = pairs(done, DILOCO)
    apart = [last_accuracy(one) - last_accuracy(other) for one, other in paired]
    found = interval(apart)
    if found is None or len(apart) < SEEDS:
        verdict = f"open: {len(apart)} of {SEEDS} seeds"
    else:
        verdict = "reached" if found[1] >= 0 else "missed"
    shown = "" if found is None else f"{found[0]:+.4f} to {found[1]:+.4f}"
    ratio = fewer_bytes(done, DILOCO)
    times = [
        (seconds_to_target(one), seconds_to_target(other)) for one, other in paired
    ]
    # One that never gets there takes forever: to leave it out would flatter the rest.
    ratios = [(one or math.inf) / other for one, other in times if other]
    faster = statistics.median(ratios) if ratios else math.nan
    fewer = "reached" if ratio >= FEWER_BYTES else "missed"
    sooner = "reached" if faster < 1 else "missed"
    within = f"seconds to {TARGET:g}, ratio within a seed"
    return pages.table(
        ["DiLoCo, H=100, against synchronous", "measured", "aim", ""],
        [
            ["difference of accuracies, 95% interval", shown, "not below 0", verdict],
            ["times fewer bytes", f"{ratio:.1f}", f"≥ {FEWER_BYTES:g}", fewer],
            [within, f"{faster:.2f}", "< 1", sooner],
        ],
    )


def section(done: Mapping[str, Any]) -> str:
    """Returns the tables and their conditions."""
    loads = [run["load"] for run in done["runs"]]
    return (
        f"![Accuracy against bytes and against seconds]({PLOT.name})\n\n"
        f"{targets(done)}\n{table(done)}\n"
        f"By `python benchmarks/local_updates.py`: {done['epochs']} epochs of 50 steps on "
        "four workers, each in a network namespace with a link of "
        f"{done['rate'].replace('mbit', ' Mbit/s')}. Accuracy is a mean over runs, on "
        "1,000 test images; under gossip it is that of worker 0's model. Bytes were read "
        "at the interfaces, from the job's start to its end. Seconds are without "
        "validation. The "
        f"workers shared {done['cores']} cores with each other and with other work (a "
        f"load of {min(loads):.0f} to {max(loads):.0f}), so seconds are ratios at best.\n"
    )


def curves(done: Mapping[str, Any]) -> dict[str, list[tuple[float, float, float]]]:
    """Returns MB, seconds and accuracy at each validation of the first seed's run."""
    found = {}
    for config in measured(done):
        run = of(done, config)[0]
        data = [0.0, *accumulate(each["received"] / 1e6 for each in run["epochs"])]
        found[LABELS[config]] = [
            (data[epoch], seconds(run, epoch), value)
            for epoch, value in accuracies(run)
        ]
    return found


def draw(shown: Mapping[str, Any]) -> "Figure":
    """Returns a figure of `curves`: accuracy against bytes and against seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for label, points in shown.items():
        for panel, column in zip(panels, (0, 1), strict=True):
            across = [point[column] for point in points]
            panel.plot(across, [p[2] for p in points], marker=".", label=label)
    for panel, name in zip(panels, ("MB received by a worker", "seconds"), strict=True):
        panel.set_xscale("log")
        panel.set_xlabel(name)
        panel.axhline(TARGET, color="0.7", lw=0.8, zorder=0)
    panels[0].set_ylabel("accuracy on 1,000 test images")
    panels[0].set_ylim(bottom=0.8)
    panels[1].legend(fontsize=7)
    return figure


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the page and the plot, and returns the exit status."""
    done = pages.measured("local_updates")
    return pages.publish(
        pages.DOCS / "measured-local-updates.md",
        {"local-updates": f"{section(done)}\n{pages.recorded('local_updates')}"},
        "--check" in arguments,
        pages.Plot(PLOT, curves(done), draw),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
