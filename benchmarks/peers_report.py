"""Tables and the plot of peers.py.

python benchmarks/peers_report.py          # docs/peers.md, docs/peers.png; prints targets
python benchmarks/peers_report.py --check  # exits with status 1 if the page differs
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pages
from peers_results import Measured, cpu, rate
from peers_targets import targets
from turns import kept, unique

RECORDED = pages.MEASURED / "peers.json"
PLOT = pages.DOCS / "peers.png"
BASE = "mxnet"
# Beside each other in the plot.
_PANELS = 3
ON_PLOT_ALONE = (
    "mlp-adam, 2 ps and 2 workers",
    "mlp-sgd, 4 ps and 8 workers",
    "cnn-sgd, 2 ps and 2 workers, links of 200mbit",
    "recommender, 2 ps and 2 workers",
)
"""Workloads whose tables would say much the same as those of their neighbours."""


def read(path: Path) -> list[Measured]:
    """Returns what peers.py has written to a file; nothing if there is none."""
    rows = kept(str(path)).get("workloads", [])
    return [Measured.from_dict(row) for row in rows]


def table(measured: Measured) -> str:
    """Returns a row for each contender that took turns."""
    names = unique(each.contender for each in measured.rounds)
    base = BASE if BASE in names else names[0]
    heads = ["system", "steps/s", "CPU ms per step", "kB per step"]
    heads += ["training loss", f"rate / {base}"]
    # What the links allow, where that was the question.
    limit = measured.environment.get("limit")
    if limit:
        heads.append(f"of the {limit:.1f} steps/s of the links")
    rows: list[list[object]] = []
    for name in (each for each in measured.contenders if each in names):
        rows.append(
            [
                name,
                f"{measured.spread(name, rate).median:,.0f}",
                f"{measured.spread(name, cpu).median:.2f}",
                f"{measured.spread(name, lambda r: r.kilobytes).median:,.0f}",
                _known(measured.training_loss(name)),
                measured.ratio(name, base, rate),
            ]
        )
        if limit:
            rows[-1].append(f"{measured.spread(name, rate).median / limit:.2f}")
    return pages.table(heads, rows)


def _known(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def lost_updates(every: Sequence[Measured]) -> str:
    """Says how many steps the servers of each contender did not count."""
    found: dict[str, list[str]] = {}
    for name in unique(each for measured in every for each in measured.contenders):
        counts = [
            each.lost(name)
            for each in every
            if any(update.contender == name for update in each.updates)
        ]
        known = [count for count in counts if count is not None]
        lost = str(sum(known)) if len(known) == len(counts) else "not counted"
        found.setdefault(lost, []).append(f"`{name}`")
    said = [f"{lost} of {', '.join(names)}" for lost, names in found.items()]
    if len(found) > 1:
        most = max(found, key=lambda lost: len(found[lost]))
        said = [f"{lost} of {', '.join(found[lost])}" for lost in found if lost != most]
        said.append(f"{most} of all others")
    return f"Updates lost in all workloads together: {'; '.join(said)}.\n"


def page(every: Sequence[Measured]) -> str:
    """Returns the generated part of docs/peers.md."""
    if not every:
        return f"Not recorded yet: {RECORDED.name} is missing.\n"
    recorded = pages.measured("peers")["recorded"]
    at = {name: f"`{commit}`, {date}" for name, (commit, date) in recorded.items()}
    shown = [each for each in every if each.workload not in ON_PLOT_ALONE]
    parts = [f"Medians of at least {min(map(_rounds, shown))} rounds.\n"]
    for measured in shown:
        learnt = measured.learnt[0].steps
        parts.append(
            f"### {measured.workload}\n\nTraining loss after {learnt:,} steps; recorded at "
            f"{at[measured.workload]}.\n\n{table(measured)}"
        )
    on_plot = "; ".join(f"{name} ({at[name]})" for name in ON_PLOT_ALONE)
    parts.append(f"Only on the plot: {on_plot}.\n")
    parts.append(lost_updates(every))
    alt = "Steps per second of each contender: median, minimum and maximum"
    parts.append(f"![{alt}]({PLOT.name})\n")
    parts.append(f"### Versions\n\n{_versions(every)}")
    return "\n".join(parts)


def _rounds(measured: Measured) -> int:
    """How many rounds the contender with the fewest has."""
    turns = [each.contender for each in measured.rounds]
    return min(turns.count(name) for name in set(turns))


def _versions(every: Sequence[Measured]) -> str:
    """Returns a row for each environment, and one for each machine."""
    rows: dict[str, str] = {}
    for measured in every:
        for name, found in measured.environment.items():
            if isinstance(found, dict):
                versions = ", ".join(f"{each} {what}" for each, what in found.items())
                rows.setdefault(name, versions)
    machines: dict[str, list[str]] = {}
    for measured in every:
        about = measured.environment
        machine = f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}"
        machine += f", Python {about['python']}"
        machines.setdefault(machine, []).append(measured.workload)
    # The workloads of the last machine are those that no other has.
    *others, (last, _) = machines.items()
    rows |= {f"machine of {'; '.join(what)}": name for name, what in others}
    rows["machine of all others" if others else "machine"] = last
    return pages.table(["environment", "versions"], list(rows.items()))


def plot(every: Sequence[Measured], path: Path) -> None:
    """Draws the steps per second of all contenders, one panel for each workload."""
    from matplotlib.figure import Figure

    longest = max(len(_names(measured)) for measured in every)
    lines = -(-len(every) // _PANELS)
    size = (4.5 * _PANELS, lines * (1 + 0.3 * longest))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, _PANELS, squeeze=False).ravel()
    for empty in panels[len(every) :]:
        empty.set_axis_off()
    for axes, measured in zip(panels, every, strict=False):
        names = _names(measured)
        spreads = [measured.spread(name, rate) for name in names]
        errors = list(zip(*(each.errors for each in spreads), strict=True))
        colors = ["C0" if name.startswith("tfdist") else "0.6" for name in names]
        medians = [each.median for each in spreads]
        axes.barh(names, medians, color=colors, xerr=errors, capsize=2)
        axes.set_title(measured.workload, fontsize="medium")
        axes.set_xlabel("steps/s: median and spread")
    figure.savefig(path, dpi=120)


def _names(measured: Measured) -> list[str]:
    """Returns the contenders that took turns, the fastest last."""
    names = {each.contender for each in measured.rounds}
    return sorted(names, key=lambda name: measured.spread(name, rate).median)


def main(argv: Sequence[str]) -> int:
    """Writes or checks the page, and returns the exit status."""
    every = [measured for measured in read(RECORDED) if measured.rounds]
    is_check = "--check" in argv
    if every and not is_check:
        plot(every, PLOT)
        print(targets(every))
    return pages.publish(pages.DOCS / "peers.md", {"numbers": page(every)}, is_check)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
