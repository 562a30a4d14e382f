"""What benchmarks write into pages of docs/: sections between marks, and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def filled(text: str, sections: Mapping[str, str]) -> str:
    """Returns a page's text with each section between the marks of its name."""
    for name, section in sections.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin, 1)
        _, after = rest.split(end, 1)
        text = f"{before}{begin}\n{section}{end}{after}"
    return text


def table(heads: Sequence[object], cells: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    rows = [heads, ["---"] * len(heads), *cells]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def write_or_check(page: Path, wanted: str, is_check: bool, command: str) -> int:
    """Writes a page, or checks that it is as wanted; returns the exit status."""
    if not is_check:
        page.write_text(wanted)
        return 0
    is_wanted = page.read_text() == wanted
    if not is_wanted:
        print(f"{page.name} is not what {command} --markdown makes: run it")
    return int(not is_wanted)
