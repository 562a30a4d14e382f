"""Runs the tests in an environment and reads what came out."""

import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

FEATURES = "tests/features"
# Its other tests are of our code, and need the extra `estimator`.
PRIVATE = [
    f"tests/repository/test_private_api.py::test_every_declared_{each}_exists"
    for each in ("symbol", "member")
]


def _modules(*names: str) -> list[str]:
    return [f"{FEATURES}/test_{name}.py" for name in names]


TESTS = {
    "private": PRIVATE,
    "smoke": _modules("training", "saving"),
    "quick": _modules("models", "training", "optimizers", "saving", "partitioning"),
    "all": [*PRIVATE, FEATURES, "tests/features_in_step/test_features_synchronous.py"],
}
TIMEOUT = 3600.0  # seconds


def run(python: Path, source: Path, tests: str, directory: Path) -> dict[str, Any]:
    """Runs tests, and returns their outcomes.

    Args:
        python: Of the environment to run them in.
        source: The checkout that has them.
        tests: A key of `TESTS`.
        directory: Where the log and the report go.

    Raises:
        RuntimeError: If no test ran.
    """
    report, log = directory / "report.xml", directory / "log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not thorough", f"--junitxml={report}", *TESTS[tests]]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # What is tested is the checkout, whatever else the caller's Python would import.
    # Without bytecode, each process of a cluster would compile TensorFlow's modules.
    for name in ("PYTHONPATH", "TF_CONFIG", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    with log.open("w") as out:
        done = subprocess.run(
            command,
            cwd=source,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
        )
    if not report.exists():
        raise RuntimeError(f"pytest exited with {done.returncode}: see {log}")
    return read(report)


def read(report: Path) -> dict[str, Any]:
    """Returns the numbers of a JUnit report, and the names of what did not pass."""
    counts: Counter[str] = Counter()
    failures, skips = [], []
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    for case in suite.iter("testcase"):
        name = f"{case.get('classname', '').split('.')[-1]}.py::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failures.append(name)
        elif skipped is not None:
            counts["skipped"] += 1
            skips.append(f"{name}: {skipped.get('message')}")
        else:
            counts["passed"] += 1
    return {
        **{key: counts[key] for key in ("passed", "failed", "skipped")},
        "seconds": round(float(suite.get("time", 0))),
        "failures": failures,
        "skips": skips,
    }
