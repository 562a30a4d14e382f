"""Spark MLlib beside the ways of the linear predictor: seconds per pass and to a loss.

    make peers
    python benchmarks/spark_mllib.py --json=benchmarks/measured/spark_mllib.json
    python benchmarks/spark_mllib.py --report      # writes docs/consistency.md

Linear and logistic regression on the same rows, which are in memory before. MLlib fits by
L-BFGS, whose iteration is a pass over all rows; the others by gradient descent in small
batches. Contenders take turns, each after a fit or a pass that is not timed. A ratio
compares turns of the same repeat, and the loss is that of all rows, `--within` above the
least possible.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from absl import app, flags
from chaos_report import environment
from peer_programs.regression import REGRESSIONS, least_loss, make_data

import launch

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "spark_mllib.json"
PAGE = ROOT / "docs" / "consistency.md"
SPARK = ROOT / "build" / "peers" / "spark" / "bin" / "python"
PROGRAMS = ROOT / "benchmarks" / "peer_programs"
BEGIN, END = "<!-- spark:begin -->", "<!-- spark:end -->"
MOST_PASSES = 10
CONTENDERS = (
    "spark",
    "sequential",
    "map_reduce",
    "synchronous",
    "bounded",
    "asynchronous",
)
NAMES = {
    "spark": "Spark MLlib",
    "sequential": "one thread, NumPy",
    "map_reduce": "map and reduce",
    "synchronous": "`Synchronous()`",
    "bounded": "`BoundedStaleness(4)`",
    "asynchronous": "`Asynchronous()`",
}


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "How often each contender runs.", lower_bound=1)
    flags.DEFINE_integer("rows", 32768, "Examples.", lower_bound=1)
    flags.DEFINE_integer("columns", 100, "The length of the weights.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 256, "Examples per update.", lower_bound=1)
    flags.DEFINE_float("within", 0.01, "The loss to reach, above the least.", 0.0)
    flags.DEFINE_string("master", "local[2]", "Spark's workers.")
    flags.DEFINE_string("json", None, "Write every turn to this file.")
    flags.DEFINE_boolean("report", False, "Write the table into the page, and end.")


class Program:
    """A process that answers a line of JSON with a line of JSON."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer.

        Raises:
            RuntimeError: If the process has ended.
        """
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended: see its output above")
        return json.loads(line)


@contextmanager
def program(*command: str, **env: str) -> Iterator[Program]:
    """Starts a process, and waits for its end."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Program(process)
        finally:
            assert process.stdin
            process.stdin.close()


def passes_to(target: float, losses: Sequence[float]) -> int:
    """Returns how many passes it takes to reach a loss, or 0 if it is not reached.

    >>> passes_to(0.5, [0.9, 0.4, 0.6])
    2
    """
    return next((n for n, each in enumerate(losses, 1) if each <= target), 0)


def turn(answer: dict[str, Any], target: float) -> dict[str, Any]:
    """Returns the seconds per pass and to the target: None if it was not reached."""
    seconds, count = answer["seconds"], passes_to(target, answer["losses"])
    return {
        "per_pass": sum(seconds) / len(seconds),
        "passes": count,
        "to_target": sum(seconds[:count]) if count else None,
    }


def spark_turn(spark: Program, regression: str, passes: int) -> dict[str, Any]:
    """Times one fit of MLlib, and returns the same as `turn`."""
    told = spark.ask(regression=regression, passes=passes)
    seconds = told["seconds"]
    return {
        "per_pass": seconds / told["passes"],
        "passes": told["passes"],
        "to_target": seconds,
    }


def measure() -> dict[str, Any]:
    """Runs all contenders in turns."""
    options = flags.FLAGS
    size = (str(options.rows), str(options.columns))
    turns: list[dict[str, Any]] = []
    with ExitStack() as stack:
        script = str(PROGRAMS / "spark_regression.py")
        spark = stack.enter_context(
            program(
                str(SPARK), script, options.master, *size, SPARK_LOCAL_IP="127.0.0.1"
            )
        )
        servers = stack.enter_context(launch.servers(1, 2, network="loopback"))
        chief = stack.enter_context(
            program(
                *(sys.executable, str(ROOT / "benchmarks" / "spark_chief.py")),
                *(*size, str(options.batch_size)),
                TF_CONFIG=servers.tf_config.to_json(),
            )
        )
        for regression in REGRESSIONS:
            least = least_loss(
                regression, make_data(regression, options.rows, options.columns)
            )
            target = least * (1 + options.within)
            losses = []
            while not passes_to(target, losses) and len(losses) < MOST_PASSES:
                told = spark.ask(regression=regression, passes=len(losses) + 1)
                losses.append(told["loss"])
            enough = passes_to(target, losses)
            for repeat in range(options.repeats):
                order = CONTENDERS[:: 1 if repeat % 2 else -1]
                for how in order:
                    if how == "spark":
                        found = spark_turn(spark, regression, enough)
                    else:
                        answer = chief.ask(how=how, regression=regression, passes=3)
                        found = turn(answer, target)
                    found |= {"how": how, "regression": regression, "repeat": repeat}
                    print(found, flush=True)
                    turns.append(found)
    shape = {name: options[name].value for name in ("rows", "columns", "batch_size")}
    return {
        "environment": environment(),
        "load": os.getloadavg(),
        "master": options.master,
        "within": options.within,
        **shape,
        "turns": turns,
    }


def of(turns: Sequence[dict[str, Any]], how: str, regression: str) -> list[Any]:
    """Returns the turns of a contender, by repeat."""
    chosen = [t for t in turns if (t["how"], t["regression"]) == (how, regression)]
    return sorted(chosen, key=lambda each: each["repeat"])


def table(measured: dict[str, Any]) -> str:
    """Returns the section of the page: medians, and paired ratios to Spark's."""
    rows, columns, batch = (measured[k] for k in ("rows", "columns", "batch_size"))
    lines = [
        "| regression | | seconds per pass | passes to the loss | seconds to the loss | "
        "Spark's over these |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for regression in REGRESSIONS:
        spark = of(measured["turns"], "spark", regression)
        for how in CONTENDERS:
            turns = of(measured["turns"], how, regression)
            if not turns:
                continue
            cells = [regression, NAMES[how], _median(turns, "per_pass", ".3f")]
            cells.append(_median(turns, "passes", ".0f"))
            if all(each["to_target"] for each in turns):
                ratios = [
                    a["to_target"] / b["to_target"]
                    for a, b in zip(spark, turns, strict=True)
                ]
                cells.append(_median(turns, "to_target", ".2f"))
                spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
                cells.append(f"{statistics.median(ratios):.1f} ({spread})")
            else:
                cells += ["not reached", ""]
            lines.append(f"| {' | '.join(cells)} |")
    repeats = len(of(measured["turns"], "spark", REGRESSIONS[0]))
    about = (
        f"{rows:,} rows of {columns} columns, batches of {batch}, 1 ps and 2 workers, "
        f"Spark with `{measured['master']}`; the loss is {measured['within']:.0%} above "
        f"the least. Medians of {repeats} interleaved repeats, and of the ratios of the "
        f"same repeat (least to greatest), on {measured['environment']['cores']} cores "
        f"with a load of {measured['load'][0]:.0f}."
    )
    return "\n".join([*lines, "", about, ""])


def _median(turns: Sequence[dict[str, Any]], key: str, form: str) -> str:
    return format(statistics.median(each[key] for each in turns), form)


def page(text: str, measured: dict[str, Any]) -> str:
    """Returns the page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(measured)}{END}{after}"


def main(argv: list[str]) -> None:
    """Measures and writes, or reports."""
    del argv
    if flags.FLAGS.report:
        measured = json.loads(MEASURED.read_text())
        PAGE.write_text(page(PAGE.read_text(), measured))
        return
    if not SPARK.exists():
        sys.exit(f"Spark is not installed in {SPARK}: run `make peers`, with Java 17.")
    measured = measure()
    print(table(measured))
    if flags.FLAGS.json:
        Path(flags.FLAGS.json).write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
