"""The table of what TLS costs: a pure function of the JSON of secure.py.

python benchmarks/secure_report.py           # into docs/security.md
python benchmarks/secure_report.py --check   # exits with status 1 if they differ
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "secure.json"
DOCUMENT = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- secure:begin -->", "<!-- secure:end -->"
LABELS = {
    "fit": ("`fit` of the CNN, steps/s", 0, 0.95),
    "read": ("a read of 64 MB, MB/s", 0, 0.8),
    "trip": ("the round trip of a scalar, ms", 2, 1.3),
}
"""Of each measure its name, the digits to show, and the ratio that was aimed at."""


def ratios(rounds: Sequence[Mapping[str, Any]], measure: str) -> list[float]:
    """Returns TLS divided by plain, for each round, in order of size."""
    return sorted(each[measure]["tls"] / each[measure]["private"] for each in rounds)


def row(rounds: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Returns the line of one measure."""
    label, digits, target = LABELS[measure]
    plain, tls = (
        statistics.median(each[measure][kind] for each in rounds)
        for kind in ("private", "tls")
    )
    paired = ratios(rounds, measure)
    quarter = len(paired) // 4
    median = statistics.median(paired)
    is_time = measure == "trip"
    is_met = median <= target if is_time else median >= target
    sign = "≤" if is_time else "≥"
    return (
        f"| {label} | {plain:.{digits}f} | {tls:.{digits}f} | {median:.2f} | "
        f"{paired[quarter]:.2f} to {paired[-1 - quarter]:.2f} | {sign} {target:g}"
        f"{'' if is_met else ', missed'} |\n"
    )


def section(measured: Mapping[str, Any]) -> str:
    """Returns the table and its conditions."""
    rounds = measured["rounds"]
    head = (
        "| | plain | TLS | TLS / plain | middle half of the rounds | aim |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    return (
        head
        + "".join(row(rounds, each) for each in LABELS)
        + f"\nBy `python benchmarks/secure.py`: medians of {len(rounds)} rounds in which "
        "both took turns, and of the ratios within a round. All three hosts were network "
        f"namespaces of one machine, and shared its {measured['cores']} cores with other "
        f"work (a load of {measured['load']:.0f}).\n"
    )


def updated(text: str, measured: Mapping[str, Any]) -> str:
    """Returns the document with the section between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section(measured)}{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the document, and returns the exit status."""
    text = DOCUMENT.read_text()
    new = updated(text, json.loads(MEASURED.read_text()))
    if "--check" in arguments:
        return int(new != text)
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
