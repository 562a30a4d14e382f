"""What benchmarks write into pages of docs/: sections between marks, tables and plots."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags
from turns import WHOLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MEASURED = ROOT / "benchmarks" / "measured"


@dataclass(frozen=True)
class Plot:
    """A picture of a page, which stores a digest of its data: an outdated one is found.

    Attributes:
        path: The PNG file.
        shown: Everything that it shows, as JSON.
        draw: Returns the figure of `shown`.
    """

    path: Path
    shown: Any
    draw: Callable[[Any], "Figure"]

    @property
    def digest(self) -> str:
        """That of its data."""
        return hashlib.sha256(json.dumps(self.shown).encode()).hexdigest()

    def is_current(self) -> bool:
        """Whether the file shows this data."""
        return self.digest.encode() in self.path.read_bytes()

    def write(self) -> None:
        """Draws the file."""
        # Without the version of matplotlib, the same data gives the same bytes.
        about = {"Description": f"shown: {self.digest}", "Software": None}
        figure = self.draw(self.shown)
        figure.savefig(self.path, format="png", dpi=110, metadata=about)


def define_flags() -> None:
    """Defines the flags of a benchmark that writes its page itself."""
    flags.DEFINE_string("json", None, "Write what is measured to this file.")
    flags.DEFINE_bool("markdown", False, "Write what was recorded into the page.")
    flags.DEFINE_bool("check", False, "Check that the page has what was recorded.")


def measured(name: str) -> Any:
    """Returns what the benchmark of this name has recorded."""
    return json.loads((MEASURED / f"{name}.json").read_text())


def filled(text: str, sections: Mapping[str, str]) -> str:
    """Returns a page's text with each section between the marks of its name."""
    for name, section in sections.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin, 1)
        _, after = rest.split(end, 1)
        text = f"{before}{begin}\n{section}{end}{after}"
    return text


def table(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def recorded(*names: str) -> str:
    """Returns at which commits, on which days, benchmarks were recorded."""
    when: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for part, (commit, date) in measured(name)["recorded"].items():
            parts = when.setdefault((commit, date), [])
            parts.append(name if part == WHOLE else part)
    lines = []
    for (commit, date), parts in when.items():
        which = f": {'; '.join(parts)}" if len(when) > 1 else ""
        lines.append(f"Recorded at commit `{commit}` on {date}{which}.\n")
    return "".join(lines)


def publish(
    page: Path, sections: Mapping[str, str], is_check: bool, plot: Plot | None = None
) -> int:
    """Writes a page and its plot, or checks them.

    Returns:
        The exit status: 1 if a check has found an outdated file, which it names.
    """
    text = page.read_text()
    wanted = filled(text, sections)
    if not is_check:
        page.write_text(wanted)
        if plot:
            plot.write()
        return 0
    outdated = [page] if text != wanted else []
    if plot and not plot.is_current():
        outdated.append(plot.path)
    for path in outdated:
        print(f"{path.name} is outdated", file=sys.stderr)
    return int(bool(outdated))
