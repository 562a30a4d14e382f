"""Runs scripts as a Keras user writes them, under every strategy and without one.

    python -m tests.scripts --strategy=all
    python -m tests.scripts --strategy=multi_worker,ring --only=gan,gpt
    python -m tests.scripts --strategy=all --write  # docs/scripts.md too

Prints a table of scripts by strategy, beside plain Keras. The exit status is 1 if a
script fails, differs from plain Keras, or is refused where it is not said to be.
"""

import argparse
import sys

import rich.console

from ..scripts_runner import job, table
from ..scripts_runner.comparison import Row, Script, all_scripts


def main() -> int:
    """Runs the command; returns its exit status."""
    args = _parse()
    console = rich.console.Console(width=None if sys.stdout.isatty() else 160)
    names = args.only or all_scripts()
    scripts = [Script.read(name) for name in names]
    rows: list[Row] = []
    with console.status("plain Keras"):
        plain = job.run("plain", names)
    for strategy in args.strategy:
        with console.status(strategy):
            found = plain if strategy == "plain" else job.run(strategy, names)
        rows += [
            Row(each, strategy, found[each.name], plain[each.name]) for each in scripts
        ]
    rows.sort(key=lambda row: row.script.name)
    console.print(table.console_table(rows))
    for row in rows:
        if args.tracebacks and row.why_not and row.outcome.traceback:
            console.print(f"{row.script.name}, {row.strategy}:", style="bold")
            console.print(row.outcome.traceback, markup=False, highlight=False)
    if args.write:
        table.write(rows)
    wrong = sum(bool(row.why_not) for row in rows)
    console.print(f"{len(rows)} rows, {wrong} of them wrong")
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scripts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--strategy",
        type=lambda text: _names(text, job.STRATEGIES),
        default="all",
        help=f"some of {', '.join(job.STRATEGIES)}, or all",
    )
    parser.add_argument(
        "--only",
        type=lambda text: _names(text, all_scripts()),
        help="some scripts, by name: a,b",
    )
    parser.add_argument(
        "--tracebacks", action="store_true", help="print the traceback of each failure"
    )
    parser.add_argument(
        "--write", action="store_true", help="write docs/scripts.md: of all rows alone"
    )
    args = parser.parse_args()
    if args.write and (args.only or args.strategy != list(job.STRATEGIES)):
        parser.error(
            "--write makes the page of all rows: leave --only and --strategy out"
        )
    return args


def _names(text: str, allowed: list[str] | tuple[str, ...]) -> list[str]:
    names = list(allowed) if text == "all" else text.split(",")
    for name in names:
        if name not in allowed:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(allowed)}"
            )
    return names


if __name__ == "__main__":
    sys.exit(main())
