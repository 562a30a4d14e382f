"""Tables and a plot of the results of all_reduce.py: pure functions of its JSON.

    python benchmarks/all_reduce_report.py           # into docs/measured-all-reduce.md
    python benchmarks/all_reduce_report.py --check   # exits with status 1 if they differ

No number there is typed by hand. The plot stores a digest of the data it shows.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pages
from all_reduce_results import Overlap, Results
from all_reduce_targets import (
    UNSHAPED,
    Target,
    overlap_targets,
    size_name,
    targets,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = ("all_reduce", "all_reduce_unshaped", "all_reduce_overlap")

LABELS = {
    "choice": "`AllReduce()`",
    "ring": "ring",
    "ring_bfloat16": "ring, bfloat16",
    "reduce_then_broadcast": "star",
    "RING": "TF RING",
    "AUTO": "TF AUTO",
    "ReductionToOneDevice": "TF one device",
    "HierarchicalCopyAllReduce": "TF hierarchical",
}
SHOWN = {row: label for row, label in LABELS.items() if row != "AUTO"}
"""What the page shows: without GPUs, AUTO is RING."""

FROM_MEGABYTE = 1_000_000


def combined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines runs; the model is that of the last run.

    For each part and rate, a later run replaces an earlier one.
    """
    measured: list[dict[str, Any]] = []
    for run in runs:
        again = {(each["part"], each["rate"]) for each in run["measured"]}
        measured = [e for e in measured if (e["part"], e["rate"]) not in again]
        measured += run["measured"]
    return {
        "environments": [run["environment"] for run in runs],
        "overlap": runs[-1]["overlap"],
        "measured": measured,
    }


def markdown(done: dict[str, Any]) -> str:
    """Returns the tables, in Markdown."""
    results, about = Results(done["measured"]), done["environments"][-1]
    overlap = Overlap(done)
    parts = []
    found: list[Target] = []
    if results.rates:
        found += targets(results)
        parts.append(_seconds_tables(results))
    if overlap.rows:
        found += overlap_targets(overlap)
        parts.append(_overlap_table(overlap))
    parts.insert(0, _targets_table(found))
    repeats = 1 + max(each["repeat"] for each in done["measured"])
    commands = "".join(f"    {each['command']}\n" for each in done["environments"])
    parts.append(
        f"Medians of {repeats} repeats in turns; ratios are of pairs. Python "
        f"{about['python']}, TensorFlow {about['tensorflow']}, {about['cores']} cores "
        f"for all hosts together.\n\n{commands}"
    )
    return "\n".join(parts)


def _targets_table(found: Iterable[Target]) -> str:
    rows = []
    for each in found:
        bound = f"{'at least' if each.least else 'at most'} {each.bound:g}"
        digits = 3 if each.bound in (1.01, 0.56) else 2
        verdict = "reached" if each.reached else "**missed**"
        measured = f"{each.worst:.{digits}f}"
        rows.append([each.what, bound, measured, each.where, verdict])
    return pages.table(["ratio", "target", "worst measured", "where", ""], rows)


def _seconds_tables(results: Results) -> str:
    tables = []
    heads = ["hosts", "size", *SHOWN.values(), "`AllReduce()` / best of TF"]
    for rate in results.rates:
        rows = []
        for hosts in results.hosts[-1:]:
            for size in results.sizes[::2]:
                point = {"hosts": hosts, "rate": rate, "size": size}
                best = results.best_of_tensorflow(**point)
                ratio = results.ratio("choice", best, **point) if best else None
                cells = [_seconds_cell(results, row=row, **point) for row in SHOWN]
                last = f"{ratio:.2f}" if ratio else ""
                rows.append([hosts, size_name(size), *cells, last])
        if rate == UNSHAPED:
            about = "Links that are not shaped:"
        else:
            about = (
                f"Links of {rate} (in brackets: relative to the least possible time):"
            )
        tables.append(f"{about}\n\n{pages.table(heads, rows)}")
    return "\n".join(tables)


def _seconds_cell(results: Results, **point: Any) -> str:
    if not results.has(**point):
        return ""
    taken = duration(results.seconds(**point))
    if point["rate"] == UNSHAPED or point["size"] < FROM_MEGABYTE:
        return taken
    return f"{taken} ({results.over_limit(**point):.3f})"


def _overlap_table(overlap: Overlap) -> str:
    model = overlap.model
    heads, rows = ["", "per step", "exchange alone"], []
    for row in overlap.rows:
        exchange = overlap.exchange(row)
        alone = duration(exchange) if exchange else ""
        rows.append([row, duration(overlap.seconds(row)), alone])
    return (
        f"Steps of a model of {model['layers']} layers of "
        f"{size_name(model['layer_bytes'])}, whose backward pass takes "
        f"{model['compute']:g} s, on {overlap.hosts} hosts with links of "
        f"{overlap.rate}. Our default bucket here has "
        f"{size_name(overlap.bucket_bytes)}.\n\n{pages.table(heads, rows)}"
    )


def shown(done: dict[str, Any]) -> dict[str, Any]:
    """The data of the plot: curves of seconds over the limit, and bars of step times."""
    results, overlap = Results(done["measured"]), Overlap(done)
    rate, hosts = results.rates[0], results.hosts[-1]
    curves = {
        LABELS[row]: [
            (size, round(results.over_limit(**point), 4))
            for size in results.sizes
            if results.has(**(point := {**at(hosts, rate, size), "row": row}))
        ]
        for row in LABELS
    }
    bars = {row: round(overlap.seconds(row), 4) for row in overlap.rows}
    return {"rate": rate, "hosts": hosts, "curves": curves, "bars": bars}


def at(hosts: int, rate: str, size: int) -> dict[str, Any]:
    return {"hosts": hosts, "rate": rate, "size": size}


def draw(what: dict[str, Any]) -> "Figure":
    """Returns the figure of what `shown` returned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    times, steps = figure.subplots(1, 2)
    for label, points in what["curves"].items():
        times.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    times.axhline(1, color="black", linewidth=0.8)
    times.set_xscale("log")
    times.set_yscale("log")
    times.set_xlabel("bytes")
    times.set_title(
        f"{what['hosts']} hosts, {what['rate']}: seconds / those of the least bytes",
        fontsize=10,
    )
    times.grid(alpha=0.3)
    times.legend(fontsize=8)
    names = list(what["bars"])[::-1]
    drawn = steps.barh(names, [what["bars"][name] for name in names])
    steps.bar_label(drawn, fmt="%.2f", fontsize=8)
    steps.tick_params(axis="y", labelsize=8)
    steps.set_title("Seconds of a step: does the exchange overlap?", fontsize=10)
    return figure


def duration(seconds: float) -> str:
    """Formats seconds with three digits and a unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def main(argv: Sequence[str]) -> int:
    """Writes the page and the plot, or checks them; returns the exit status."""
    done = combined([pages.measured(name) for name in RUNS])
    return pages.publish(
        pages.DOCS / "measured-all-reduce.md",
        {"all-reduce-hosts": f"\n{markdown(done)}\n{pages.recorded(*RUNS)}\n"},
        "--check" in argv,
        pages.Plot(pages.DOCS / "all_reduce_hosts.png", shown(done), draw),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
