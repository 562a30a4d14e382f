"""The table of scripts by strategy, for a console and for `docs/scripts.md`."""

import re
from collections.abc import Sequence
from pathlib import Path

import rich.table
import rich.text

from .comparison import Row

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "scripts.md"
COLUMNS = (
    "script",
    "strategy",
    "metric",
    "plain Keras",
    "here",
    "weights differ",
    "lines changed",
    "seconds",
)
INTRODUCTION = """# Scripts

Each script of `tests/scripts` is written as for one process. It runs in plain Keras, on
two ps and two workers, on two workers in step, and on a ring of two workers; the only
lines that differ are those of `with strategy.scope():`. `python -m tests.scripts
--strategy=all --write` makes this page.

*Weights differ* is the largest difference of any weight from plain Keras's, relative to
the largest weight of the same tensor, where nothing is random and workers are in step.
Where it is empty, the metric is near plain Keras's, as near as the script asks for.

"""
_LONGEST = 200  # letters of a reason in the console


def cells(row: Row) -> list[str]:
    """The cells of a row; a reason, where there is one, is the metric."""
    outcome = row.outcome
    before, after = [row.script.name, row.strategy], []
    after += [str(row.script.lines), f"{outcome.seconds:.1f}"]
    difference = "" if row.difference is None else f"{row.difference:.0e}"
    if row.why_not:
        return [
            *before,
            f"FAILS: {_in_a_line(row.why_not)}",
            "",
            "",
            difference,
            *after,
        ]
    if outcome.error:
        return [*before, f"refused: {_reason(outcome.error)}", "", "", "", *after]
    name, value = next(iter(outcome.metrics.items()))
    metric = [name, f"{row.plain.metrics[name]:.4g}", f"{value:.4g}"]
    return [*before, *metric, difference, *after]


def console_table(rows: Sequence[Row]) -> rich.table.Table:
    """The table, with what is wrong in red."""
    table = rich.table.Table(*COLUMNS)
    for row in rows:
        style = "red" if row.why_not else ""
        shown = [each[:_LONGEST] for each in cells(row)]
        table.add_row(*[rich.text.Text(each) for each in shown], style=style)
    return table


def write(rows: Sequence[Row]) -> None:
    """Writes `docs/scripts.md`."""
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for row in rows:
        name, *rest = [each.replace("|", r"\|") for each in cells(row)]
        link = f"[`{name}`](../tests/scripts/{name}.py)"
        lines.append(f"| {' | '.join([link, *rest])} |")
    PAGE.write_text(INTRODUCTION + "\n".join(lines) + "\n")


def _reason(error: str) -> str:
    """What an error says, without its type, AutoGraph's stack and this machine's paths."""
    _, *_, last = re.split(r"^ *\w+(?:Error|Exception): ", error, flags=re.M)
    return re.sub(r"\S*/tests/scripts/", "", _in_a_line(last))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
