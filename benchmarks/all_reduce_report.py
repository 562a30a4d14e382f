"""Tables and a plot of the results of all_reduce.py: pure functions of its JSON.

    python benchmarks/all_reduce_report.py           # into docs/algorithms.md
    python benchmarks/all_reduce_report.py --check   # exits with status 1 if they differ

No number there is typed by hand. The plot stores a digest of the data it shows.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from all_reduce_results import Overlap, Results
from all_reduce_targets import (
    UNSHAPED,
    Target,
    overlap_targets,
    size_name,
    targets,
)

ROOT = Path(__file__).resolve().parent.parent
MEASURED = [
    ROOT / "benchmarks" / "measured" / f"all_reduce{part}.json"
    for part in ("", "_unshaped", "_overlap")
]
PAGE = ROOT / "docs" / "algorithms.md"
PLOT = ROOT / "docs" / "all_reduce_hosts.png"
BEGIN, END = "<!-- all-reduce-hosts:begin -->", "<!-- all-reduce-hosts:end -->"

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
        parts += [_seconds_tables(results), _graph_table(results)]
        parts.append(_bytes_table(results))
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
    rows = [["ratio", "target", "worst measured", "where", ""]]
    for each in found:
        bound = f"{'at least' if each.least else 'at most'} {each.bound:g}"
        digits = 3 if each.bound in (1.01, 0.56) else 2
        verdict = "reached" if each.reached else "**missed**"
        measured = f"{each.worst:.{digits}f}"
        rows.append([each.what, bound, measured, each.where, verdict])
    return _table(rows)


def _seconds_tables(results: Results) -> str:
    tables = []
    for rate in results.rates:
        rows = [["hosts", "size", *LABELS.values(), "`AllReduce()` / best of TF"]]
        for hosts in results.hosts:
            for size in results.sizes:
                point = {"hosts": hosts, "rate": rate, "size": size}
                best = results.best_of_tensorflow(**point)
                ratio = results.ratio("choice", best, **point) if best else None
                cells = [_seconds_cell(results, row=row, **point) for row in LABELS]
                last = f"{ratio:.2f}" if ratio else ""
                rows.append([str(hosts), size_name(size), *cells, last])
        if rate == UNSHAPED:
            about = "Links that are not shaped:"
        else:
            about = (
                f"Links of {rate} (in brackets: relative to the least possible time):"
            )
        tables.append(f"{about}\n\n{_table(rows)}")
    return "\n".join(tables)


def _seconds_cell(results: Results, **point: Any) -> str:
    if not results.has(**point):
        return ""
    taken = duration(results.seconds(**point))
    if point["rate"] == UNSHAPED or point["size"] < FROM_MEGABYTE:
        return taken
    return f"{taken} ({results.over_limit(**point):.3f})"


def _graph_table(results: Results) -> str:
    rounds = results.most_rounds
    rows = [["rate", "hosts", "size", *LABELS.values()]]
    for rate in results.rates:
        for hosts in results.hosts:
            for size in results.sizes:
                point = {"hosts": hosts, "rate": rate, "size": size, "rounds": rounds}
                if not results.has(row="choice", **point):
                    continue
                cells = [_round_cell(results, row=row, **point) for row in LABELS]
                speed = "not shaped" if rate == UNSHAPED else rate
                rows.append([speed, str(hosts), size_name(size), *cells])
    return (
        f"Without the cost of a call: time per round of a graph with {rounds} chained "
        "all-reduces.\n\n" + _table(rows)
    )


def _round_cell(results: Results, **point: Any) -> str:
    return duration(results.seconds(**point)) if results.has(**point) else ""


def _bytes_table(results: Results) -> str:
    rows = [["hosts", "size", *LABELS.values()]]
    rate = results.rates[0]
    for hosts in results.hosts:
        for size in results.sizes:
            points = {
                row: {"hosts": hosts, "rate": rate, "size": size, "row": row}
                for row in LABELS
            }
            cells = [
                f"{results.bytes_over_limit(**point):.3f}"
                if results.has(**point)
                else ""
                for point in points.values()
            ]
            rows.append([str(hosts), size_name(size), *cells])
    return (
        "Bytes in the busier direction of the busiest interface, relative to the least "
        f"possible (2(n - 1)/n sizes), at {rate}:\n\n{_table(rows)}"
    )


def _overlap_table(overlap: Overlap) -> str:
    model = overlap.model
    rows = [["", "per step", "exchange alone"]]
    for row in overlap.rows:
        exchange = overlap.exchange(row)
        alone = duration(exchange) if exchange else ""
        rows.append([row, duration(overlap.seconds(row)), alone])
    return (
        f"Steps of a model of {model['layers']} layers of "
        f"{size_name(model['layer_bytes'])}, whose backward pass takes "
        f"{model['compute']:g} s, on {overlap.hosts} hosts with links of "
        f"{overlap.rate}. Our default bucket here has "
        f"{size_name(overlap.bucket_bytes)}.\n\n{_table(rows)}"
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


def digest(done: dict[str, Any]) -> str:
    """Returns a digest of everything that the plot shows."""
    return "shown: " + hashlib.sha256(json.dumps(shown(done)).encode()).hexdigest()


def plot(done: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    what = shown(done)
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
    about = {"Description": digest(done), "Software": None}
    figure.savefig(path, dpi=110, metadata=about)


def page(text: str, done: dict[str, Any]) -> str:
    """Returns the page's text with the tables between its marks."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{markdown(done)}\n{END}{after}"


def differences(done: dict[str, Any]) -> list[str]:
    """Returns the names of the outdated files."""
    text = PAGE.read_text()
    right = {
        PAGE.name: text == page(text, done),
        PLOT.name: digest(done).encode() in PLOT.read_bytes(),
    }
    return [name for name, is_right in right.items() if not is_right]


def duration(seconds: float) -> str:
    """Formats seconds with three digits and a unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _table(rows: Sequence[Sequence[str]]) -> str:
    heads, *cells = rows
    lines = [heads, ["---"] * len(heads), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(argv: Sequence[str]) -> int:
    """Writes the page and the plot, or checks them; returns the exit status."""
    done = combined([json.loads(path.read_text()) for path in MEASURED])
    if "--check" in argv:
        differing = differences(done)
        for name in differing:
            print(f"{name} is not what was measured", file=sys.stderr)
        return int(bool(differing))
    PAGE.write_text(page(PAGE.read_text(), done))
    plot(done, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
