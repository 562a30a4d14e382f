"""Tables and the plot of peers.py.

python benchmarks/peers_report.py           # into docs/peers.md and docs/peers.png
python benchmarks/peers_report.py --check   # exits with status 1 if the page differs
"""

import json
from pathlib import Path

import rich.box
import rich.table
from peers_results import JOBS, Measured, Spread

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks" / "measured" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
PLOT = ROOT / "docs" / "peers.png"
BASE = "mxnet"


def read(path: Path) -> list[Measured]:
    """Returns what peers.py has written to a file."""
    rows = json.loads(path.read_text())["workloads"]
    return [Measured.from_dict(row) for row in rows]


def cells(measured: Measured) -> list[list[str]]:
    """Returns a heading, and a row for each contender that took turns."""
    names = [each.contender for each in measured.rounds if each.index == 0]
    base = BASE if BASE in names else names[0]
    rows = [
        [
            "system",
            "steps/s",
            "CPU ms per step",
            f"{' / '.join(JOBS)}",
            "kB per step",
            "loss",
            "updates lost",
            f"rate / {base}",
            f"CPU / {base}",
        ]
    ]
    for name in (each for each in measured.contenders if each in names):
        loss, lost = measured.loss(name), measured.lost(name)
        rate = measured.ratio(name, base, lambda r: r.steps_per_second)
        cpu = measured.ratio(name, base, lambda r: r.cpu_ms())
        rows.append(
            [
                name,
                f"{measured.spread(name, lambda r: r.steps_per_second).median:,.0f}",
                f"{measured.spread(name, lambda r: r.cpu_ms()).median:.2f}",
                " / ".join(f"{each:.2f}" for each in _cpu_by_job(measured, name)),
                f"{measured.spread(name, lambda r: r.kilobytes).median:,.0f}",
                "-" if loss is None else f"{loss:.4f}",
                "not counted" if lost is None else str(lost),
                str(rate),
                f"{cpu.median:.2f}",
            ]
        )
    return rows


def _cpu_by_job(measured: Measured, name: str) -> list[float]:
    return [
        Spread.of(r.cpu_ms(job) for r in measured.rounds if r.contender == name).median
        for job in JOBS
    ]


def table(measured: Measured) -> rich.table.Table:
    """Returns the table of one workload, for a terminal."""
    made = rich.table.Table(box=rich.box.ROUNDED, title=measured.workload)
    if not measured.rounds:
        return made
    heads, *rows = cells(measured)
    for head in heads:
        made.add_column(head)
    for row in rows:
        made.add_row(*row)
    return made
