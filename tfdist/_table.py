"""Tables and bars as text."""

import io

import rich.box
import rich.console
import rich.table

BAR = 30  # characters


def table_of(*headings: str, title: str | None = None) -> rich.table.Table:
    """Returns an empty table; a `>` before a heading aligns its column right."""
    table = rich.table.Table(box=rich.box.ROUNDED, title=title)
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(heading.lstrip(">"), justify="right" if right else "left")
    return table


def render(table: rich.table.Table) -> str:
    """Returns a table as text, without truncating any cell."""
    text = io.StringIO()
    # Rich shrinks a table to the width of its console.
    rich.console.Console(file=text, width=10_000).print(table)
    return text.getvalue()


def bar(amount: float, largest: float) -> str:
    """Returns a bar whose length is proportional to `amount`."""
    return "#" * round(BAR * amount / largest) if largest else ""
