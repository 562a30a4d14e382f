"""The last result of each part of the tests, and the page that shows them.

`make test-all` writes both: tests/results.json and docs/test-results.md.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import parts

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests/results.json"
PAGE = ROOT / "docs/test-results.md"

HEAD = """\
# Test results

<!-- `make test-all` writes this page from tests/results.json. -->

The last run of each part of the tests: `make test-all PART=recovery` runs one and renews its
row. A `+` after a commit says that files had been changed since. Load is that of the machine
over five minutes as the part ended. The gate is not here: no change lands without it.

| part | commit | date | passed | skipped | failed | run twice | seconds | load |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def keep(part: str, result: Mapping[str, Any]) -> None:
    """Makes a result the last one of its part."""
    kept = {**load(), part: {"commit": _commit(), **result}}
    FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(kept))


def load() -> dict[str, Any]:
    """Returns the last result of each part that has one."""
    return json.loads(FILE.read_text())


def page(kept: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page: a row for each part, and below them each test that is of note."""
    rows = [_row(part, kept.get(part)) for part in parts.PARTS]
    notes = [
        f"- {part}: {word} `{test}`"
        for part, result in sorted(kept.items())
        for word, tests in (("failed", "failed"), ("run twice", "retried"))
        for test in result[tests]
    ]
    return HEAD + "\n".join([*rows, *([""] if notes else []), *notes]) + "\n"


def _row(part: str, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return f"| {part} | not run |  |  |  |  |  |  |  |"
    failed = len(result["failed"])
    if result["status"] and not failed:
        failed = "did not end"
    cells = [result["commit"], result["date"], result["passed"], result["skipped"]]
    cells += [failed, len(result["retried"]), result["seconds"], result["load"]]
    return f"| {part} | " + " | ".join(map(str, cells)) + " |"


def _commit() -> str:
    """The commit that is checked out, with a + if something else has been changed since."""
    ours = [f":!{path.relative_to(ROOT)}" for path in (FILE, PAGE)]
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--", ".", *ours) else "")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
