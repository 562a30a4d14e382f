"""The page docs/versions.md, made from the recorded runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .run import TESTS

PATH = Path(__file__).resolve().parent.parent.parent / "docs" / "versions.md"
PACKAGES = ("tensorflow", "keras", "numpy", "python")
COUNTS = ("passed", "failed", "skipped")
COLUMNS = (
    *("TensorFlow", "Keras", "NumPy", "Python", "Tests"),
    *("Passed", "Failed", "Skipped", "Date", "Commit"),
)


def _modules(tests: str) -> str:
    """Lists the modules of a key of `TESTS`."""
    modules = (path.split("::")[0].split("/", 1)[-1] for path in TESTS[tests])
    return ", ".join(f"`{module}`" for module in dict.fromkeys(modules))


INTRODUCTION = f"""# Versions

The versions of TensorFlow, Keras, NumPy and Python that tfdist was tested with. The
lower bounds in `setup.cfg` are versions that passed.

Each row is one run in an environment of its own, on two ps and two workers. The column
Tests says which tests of `tests/` it ran:

- *all*: *private*, every test of `features`, and the part of
  `test_features_synchronous.py` that `make test-all` runs.
- *quick*: {_modules("quick")}.
- *smoke*: {_modules("smoke")}.
- *private*: the part of {_modules("private")} that looks for each
  [private symbol and member](private-api.md) that tfdist uses. It starts no cluster.

`make matrix` makes the runs and writes this page from `tests/matrix/results.json`;
`make matrix TF=2.18` runs one version. Keras is the newest release that pip resolves
for that TensorFlow, unless the row says *pinned*.
"""


# Tried by hand, on commits 690b91c and 34c1339.
OLDER_KERAS = """
## Older Keras

`setup.cfg` asks for Keras 3.12: Python 3.10 and newer can all install it. Of the feature tests that
were tried with TensorFlow 2.16.2 and older Keras, 3.11.3 fails one (`ModelCheckpoint(save_freq=n)`
counts one step too few), 3.7 to 3.9 fail one or two (the progress bar; there is no `Muon`), and
3.5.0 fails all.
"""


def page(runs: Sequence[dict[str, Any]]) -> str:
    """Returns the text of docs/versions.md."""
    heading = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"
    rows = "".join(_row(run) for run in runs)
    skips = _skips(runs) or "No test was skipped.\n"
    return f"{INTRODUCTION}\n{heading}{rows}\n## Skipped\n\n{skips}{OLDER_KERAS}"


def _row(run: dict[str, Any]) -> str:
    found = {name: run["found"][name] for name in PACKAGES}
    if "keras" in run["asked"]:
        found["keras"] += " (pinned)"
    counts = [str(run[name]) for name in COUNTS]
    cells = [*found.values(), run["tests"], *counts, run["date"], f"`{run['commit']}`"]
    return f"| {' | '.join(cells)} |\n"


def _skips(runs: Sequence[dict[str, Any]]) -> str:
    """Lists why tests were skipped, each with how many, of what, and its versions."""
    tests: dict[tuple[str, str], set[str]] = {}
    where: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for skip in run["skips"]:
            test, reason = skip.split(": ", 1)
            module, name = test.split("::", 1)
            tests.setdefault((module, reason), set()).add(name)
            where.setdefault((module, reason), []).append(_versions(run))
    return "".join(
        f"- {reason}: {len(tests[module, reason])} of `{module}` "
        f"({_joined(where[module, reason])}).\n"
        for module, reason in tests
    )


def _versions(run: dict[str, Any]) -> str:
    return f"{run['found']['tensorflow']} with Keras {run['found']['keras']}"


def _joined(versions: Sequence[str]) -> str:
    return f"TensorFlow {', '.join(dict.fromkeys(versions))}"
