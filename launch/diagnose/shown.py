"""Findings as a table, or as JSON."""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.diagnose.finding import Finding, Level

_COLOURS = {Level.OK: "green", Level.UNKNOWN: "yellow", Level.WRONG: "red"}


def show(found: Sequence[Finding], as_json: bool) -> int:
    """Prints findings; returns 0 if everything is fine, and 1 otherwise."""
    (_print_json if as_json else _print_table)(found)
    return int(any(each.level is not Level.OK for each in found))


def _print_json(found: Sequence[Finding]) -> None:
    is_well = all(each.level is Level.OK for each in found)
    listed = [each.as_dict() for each in found]
    print(json.dumps({"ok": is_well, "findings": listed}, indent=2))


def _print_table(found: Sequence[Finding]) -> None:
    table = Table("")
    table.add_column("subject", overflow="fold")
    table.add_column("finding, and what to do", overflow="fold")
    order = (Level.WRONG, Level.UNKNOWN, Level.OK)
    for each in sorted(found, key=lambda each: order.index(each.level)):
        words = Text(_printable(each.found))
        if each.advice:
            words.append(f"\n-> {_printable(each.advice)}", style="bold")
        level = Text(each.level.value, style=_COLOURS[each.level])
        table.add_row(level, Text(_printable(each.subject)), words)
    Console().print(table)


def _printable(text: str) -> str:
    """Replaces characters that the terminal cannot show, or that move its cursor."""
    encoding = sys.stdout.encoding
    shown = text.encode(encoding, "replace").decode(encoding)
    return "".join(
        each if each.isprintable() or each == "\n" else "?" for each in shown
    )
