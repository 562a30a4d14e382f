"""Writes recorded measurements into the README and docs/throughput.md.

    python benchmarks/fit_throughput.py --json=benchmarks/measured/fit_throughput.json
    python benchmarks/readme.py             # into README.md and docs/throughput.md
    python benchmarks/readme.py --check     # exits with status 1 if they differ

No number there is typed by hand: each one comes from a file in `benchmarks/measured/`.
"""

import sys
from collections.abc import Sequence
from typing import Any

import chaos_report
import embedding_report
import pages
import results
from pages import measured
from results import Repeat
from turns import unique


def summary() -> str:
    """Returns the README's table: one line per recorded benchmark."""
    rows = [
        *_speed(measured("fit_throughput")),
        _balance(measured("placement_balance")["rows"]),
        _embeddings(measured("embedding_traffic")["measured"]),
        _faults(measured("chaos")["runs"]),
    ]
    table = pages.table(
        ["What", "Measured", "Benchmark"],
        [[*cells, f"`python benchmarks/{name}.py`"] for *cells, name in rows],
    )
    recorded = pages.recorded(*unique(name for *_, name in rows)).splitlines()
    return f"{table}\n{' '.join(recorded)}\n"


def _speed(done: dict[str, Any]) -> list[list[str]]:
    repeats = [Repeat(**each) for each in done["repeats"]]
    workloads = unique(repeat.workload for repeat in repeats)
    medians = [
        results.rates(repeats, each, "fit", "tf_keras").median for each in workloads
    ]
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
            f"{results.lost_steps(repeats, 'fit')}, and "
            f"{results.lost_steps(repeats, 'loop')}",
            "fit_throughput",
        ],
    ]


def _balance(rows: Sequence[dict[str, Any]]) -> list[str]:
    models = unique(row["model"] for row in rows)
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


def main(argv: Sequence[str]) -> int:
    """Writes or checks both pages, and returns the exit status."""
    shown = {
        pages.ROOT / "README.md": summary(),
        pages.DOCS / "throughput.md": (
            results.section(measured("fit_throughput"))
            + f"\n{pages.recorded('fit_throughput')}"
        ),
    }
    is_check = "--check" in argv
    return max(
        pages.publish(page, {"numbers": numbers}, is_check)
        for page, numbers in shown.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
