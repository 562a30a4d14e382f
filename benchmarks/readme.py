"""Writes recorded measurements into the README and docs/throughput.md.

    python benchmarks/fit_throughput.py --json=benchmarks/measured/fit_throughput.json
    python benchmarks/readme.py             # into README.md and docs/throughput.md
    python benchmarks/readme.py --check     # exits with status 1 if they differ

No number there is typed by hand: each one comes from a file in `benchmarks/measured/`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chaos_report
import embedding_report
import results
from results import Repeat, Spread

ROOT = Path(__file__).resolve().parent.parent
FRONT = ROOT / "README.md"
THROUGHPUT = ROOT / "docs" / "throughput.md"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"
# `fit` reads the same tf.data on the workers as the others do; `fit_arrays` does more.
RATIOS = (("fit", "tf_keras"), ("fit_arrays", "tf_keras"), ("fit", "loop"))


def measured(name: str) -> Any:
    """Returns the recorded results of the benchmark of this name."""
    path = ROOT / "benchmarks" / "measured" / f"{name}.json"
    return json.loads(path.read_text())


def throughputmarkdown(repeats: Sequence[Repeat]) -> str:
    """Returns a Markdown table of the ratios for each workload."""
    heads = [f"`{ours}` / `{other}`" for ours, other in RATIOS]
    rows = [["model, steps per call", *heads, "CPU per step, `fit` / `tf_keras`"]]
    for workload in results.unique(repeat.workload for repeat in repeats):
        rates = [_rate(repeats, workload, *pair) for pair in RATIOS]
        cpu = results.paired(repeats, workload, RATIOS[0], lambda r: r.cpu_ms())
        rows.append([workload, *map(str, [*rates, cpu])])
    return markdown(rows)


def lost_steps(repeats: Sequence[Repeat], name: str) -> str:
    """Says how many of a contender's steps its optimizer did not count."""
    chosen = [each for each in repeats if each.contender == name]
    steps = sum(each.steps for each in chosen)
    return f"{sum(each.lost for each in chosen)} of {steps}"


def throughput(done: dict[str, Any]) -> str:
    """Returns the section of docs/throughput.md."""
    repeats = [Repeat(**each) for each in done["repeats"]]
    about = done["environment"]
    count = 1 + max(repeat.index for repeat in repeats)
    rate = Spread.of(r.steps_per_second for r in repeats if r.contender == "fit")
    names = results.unique(repeat.contender for repeat in repeats)
    lost = ", ".join(f"`{name}` {lost_steps(repeats, name)}" for name in names)
    return (
        "Ratios of steps per second, as the median (minimum to maximum) of "
        f"{count} paired repeats of {repeats[0].steps} steps. `fit` ran "
        f"{rate.least:.0f} to {rate.greatest:.0f} steps per second.\n\n"
        f"{throughputmarkdown(repeats)}\n"
        f"Steps that the optimizer did not count: {lost}.\n\n"
        "Measured by `python benchmarks/fit_throughput.py` with TensorFlow "
        f"{about['tensorflow']}, Keras {about['keras']} and tf_keras "
        f"{about['tf_keras']}.\n"
    )


def summary() -> str:
    """Returns the README's table: one line per recorded benchmark."""
    rows = [
        ["What", "Measured", "Benchmark"],
        *_speed(measured("fit_throughput")),
        _balance(measured("placement_balance")["rows"]),
        _embeddings(measured("embedding_traffic")["measured"]),
        _faults(measured("chaos")["runs"]),
    ]
    return markdown(
        [*cells, name if name == "Benchmark" else f"`python benchmarks/{name}.py`"]
        for *cells, name in rows
    )


def _speed(done: dict[str, Any]) -> list[list[str]]:
    repeats = [Repeat(**each) for each in done["repeats"]]
    workloads = results.unique(repeat.workload for repeat in repeats)
    medians = [_rate(repeats, each, "fit", "tf_keras").median for each in workloads]
    return [
        [
            "Steps per second of `fit`, relative to Keras 2 on TensorFlow's own "
            "parameter-server strategy",
            f"{min(medians):.2f} to {max(medians):.2f} (medians of "
            f"{len(workloads)} workloads)",
            "fit_throughput",
        ],
        [
            "Optimizer steps lost: `fit`, and a plain `ClusterCoordinator` loop with "
            "Keras 3",
            f"{lost_steps(repeats, 'fit')}, and {lost_steps(repeats, 'loop')}",
            "fit_throughput",
        ],
    ]


def _balance(rows: Sequence[dict[str, Any]]) -> list[str]:
    models = results.unique(row["model"] for row in rows)
    sizes = [row["num_ps"] for row in rows]
    worst = {name: max(row[name] for row in rows) for name in ("planned", "greedy")}
    in_turn = max(row["round_robin"] for row in rows)
    return [
        f"Bytes on the fullest ps over the mean, worst of {len(models)} models on "
        f"{min(sizes)} to {max(sizes)} ps: planned, greedy, round robin",
        f"{worst['planned']:.2f}, {worst['greedy']:.2f}, {in_turn:.2f}",
        "placement_balance",
    ]


def _embeddings(rows: Sequence[dict[str, Any]]) -> list[str]:
    ratios = embedding_report.times_fewer([r for r in rows if r["part"] == "bytes"])
    return [
        "Reduction in traffic of embedding lookups (100 ids per example, 4 ps) over "
        "`tf.nn.embedding_lookup_sparse`",
        f"{min(ratios):.0f}x to {max(ratios):.0f}x",
        "embedding_traffic",
    ]


def _faults(runs: Sequence[dict[str, Any]]) -> list[str]:
    found = [chaos_report.Run(**run) for run in runs]
    trained = [run for run in found if run.outcome == "trained"]
    lost = sum(max(0, run.expected - (run.steps or 0)) for run in trained)
    return [
        f"Training runs with {len(found[0].faults)} injected faults each that ended "
        "with the right weights; steps lost",
        f"{len(trained)} of {len(found)}; {lost}",
        "chaos",
    ]


def _rate(repeats: Sequence[Repeat], workload: str, *pair: str) -> Spread:
    return results.paired(repeats, workload, pair, lambda r: r.steps_per_second)


def markdown(rows: Any) -> str:
    """Returns rows of cells, the first of which are headings, as a Markdown table."""
    heads, *cells = rows
    lines = [heads, ["---"] * len(heads), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def updated(text: str, numbers: str) -> str:
    """Returns a page's text with the numbers between its marks."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{numbers}{END}{after}"


def main(argv: Sequence[str]) -> int:
    """Writes or checks both pages, and returns the exit status."""
    sections = {FRONT: summary(), THROUGHPUT: throughput(measured("fit_throughput"))}
    status = 0
    for path, numbers in sections.items():
        text = path.read_text()
        if text == (wanted := updated(text, numbers)):
            continue
        if "--check" in argv:
            print(f"{path.relative_to(ROOT)} is outdated: run python {argv[0]}")
            status = 1
        else:
            path.write_text(wanted)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
