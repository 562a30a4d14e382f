"""Writes what a benchmark measured into the README, between its marks.

    python benchmarks/fit_throughput.py --json=benchmarks/measured/fit_throughput.json
    python benchmarks/readme.py             # into README.md
    python benchmarks/readme.py --check     # exits with status 1 if they differ

So no number there is typed by hand, and each can be traced to the repeats in
`benchmarks/measured/`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import results
from results import Repeat, Spread

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "fit_throughput.json"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"
# `fit` reads the same tf.data on the workers as the others; `fit_arrays` does more.
RATIOS = (("fit", "tf_keras"), ("fit_arrays", "tf_keras"), ("fit", "loop"))


def throughput_table(repeats: Sequence[Repeat]) -> str:
    """Returns a table, in Markdown, of the ratios and of the steps that were lost."""
    heads = [f"`{ours}` / `{other}`" for ours, other in RATIOS]
    rows = [
        ["model, steps sent at once", *heads, "CPU a step, `fit` / `tf_keras`"],
        ["---"] * (len(heads) + 2),
    ]
    for workload in results.unique(repeat.workload for repeat in repeats):
        rates = [
            results.paired(repeats, workload, pair, lambda r: r.steps_per_second)
            for pair in RATIOS
        ]
        cpu = results.paired(repeats, workload, RATIOS[0], lambda r: r.cpu_ms())
        rows.append([workload, *map(str, [*rates, cpu])])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def lost_steps(repeats: Sequence[Repeat]) -> str:
    """Says how many steps each contender's optimizer did not count."""
    return ", ".join(
        f"`{name}` {sum(each.lost for each in chosen)} of "
        f"{sum(each.steps for each in chosen)}"
        for name in results.unique(repeat.contender for repeat in repeats)
        if (chosen := [each for each in repeats if each.contender == name])
    )


def section(measured: dict) -> str:
    """Returns the README's section, from what `fit_throughput.py --json` wrote."""
    repeats = [Repeat(**each) for each in measured["repeats"]]
    about = measured["environment"]
    count = 1 + max(repeat.index for repeat in repeats)
    fastest = Spread.of(
        repeat.steps_per_second for repeat in repeats if repeat.contender == "fit"
    )
    return (
        "Steps a second, as the median of paired ratios (least to greatest) of "
        f"{count} repeats of {repeats[0].steps} steps; `fit` ran "
        f"{fastest.least:.0f} to {fastest.greatest:.0f} of them a second:\n\n"
        f"{throughput_table(repeats)}\n"
        "`fit` is Keras 3 on tfdist, reading a `tf.data`; `fit_arrays` the same from "
        "arrays of the chief, each row used once an epoch; `tf_keras` is Keras 2 on "
        "TensorFlow's own strategy; `loop` a custom loop over a `ClusterCoordinator`, "
        "with Keras 3's optimizer.\n"
        f"Steps that the optimizer did not count: {lost_steps(repeats)}.\n"
        "By `python benchmarks/fit_throughput.py` with TensorFlow "
        f"{about['tensorflow']}, Keras {about['keras']}, tf_keras "
        f"{about['tf_keras']}.\n"
    )


def readme(text: str) -> str:
    """Returns the README's text with the numbers between its marks."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    numbers = section(json.loads(MEASURED.read_text()))
    return f"{before}{BEGIN}\n{numbers}{END}{after}"


def main(argv: Sequence[str]) -> int:
    """Writes or checks the README, and returns the exit status."""
    path = ROOT / "README.md"
    text = path.read_text()
    wanted = readme(text)
    if "--check" in argv:
        if text != wanted:
            print(f"README.md is not what {argv[0]} makes: run it")
        return int(text != wanted)
    path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
