"""Run the feature tests under a synchronous strategy, or a policy of consistency.

    python tests/support/feature_jobs.py multi_worker [TEST...]     # all, unless told

A job of several processes runs until a test fails, and any job until a test hangs: the
workers are then in an unknown state. A new job runs the remaining tests.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadline import PROGRAM_DEADLINE

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ROOT / "tests" / "features"
PROGRAM = FEATURES / "in_step.py"
WORKERS = {"multi_worker": 2, "ring": 1, "bounded": 1, "rounds": 1}
"""The strategies, and how many processes run the tests under each."""
# Seconds: each test has a deadline of its own.
JOB_TIMEOUT = 3000.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test: `passed`, `skipped` or `failed`, its row, and its output."""

    row: str
    outcome: str
    words: str = ""
    seconds: float = 0.0


def run(
    strategy: str,
    directory: Path,
    tests: Sequence[str] = (),
    timeout: float = PROGRAM_DEADLINE,
) -> dict[str, Outcome]:
    """Run feature tests, and return the outcome of each by its node id.

    Args:
        strategy: A key of `WORKERS`.
        directory: An empty one, for files and logs.
        tests: Paths of modules, or node ids; all that apply unless given.
        timeout: What a test may take, in seconds; the first one starts the cluster.

    Raises:
        RuntimeError: If no test runs.
    """
    outcomes: dict[str, Outcome] = {}
    left = list(tests) or [str(FEATURES)]
    while left:
        job = directory / f"job-{len(outcomes)}"
        job.mkdir(parents=True)
        log = _run_job(strategy, job, left, timeout)
        collected = _collected(job)
        if not collected:
            raise RuntimeError(f"no test ran under {strategy}: {log[-4000:]}")
        found = dict(_outcomes(job, collected, WORKERS[strategy], log))
        outcomes |= found
        left = [f"{ROOT}/{test}" for test in collected if test not in found]
    return outcomes


def _collected(job: Path) -> dict[str, str]:
    path = job / "tests.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _run_job(strategy: str, job: Path, tests: Sequence[str], timeout: float) -> str:
    command = [sys.executable]
    if WORKERS[strategy] > 1:
        command += ["-m", "launch.local", "--num_ps=0", f"--log_dir={job}/logs"]
        command += ["--fork_server=on"]  # Pytest imports the tests, not the program.
        command += [f"--num_workers={WORKERS[strategy]}"]
    command += [str(PROGRAM), str(job), str(timeout)]
    command += [f"--strategy={strategy}", *tests]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # Of the pytest that runs this one.
    env = {name: env[name] for name in env if not name.startswith("PYTEST_")}
    env.pop("TF_CONFIG", None)
    with (job / "log").open("w") as log:
        subprocess.run(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=JOB_TIMEOUT
        )
    return (job / "log").read_text()


def _outcomes(
    job: Path, tests: Mapping[str, str], workers: int, log: str
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcomes up to the test that ended the job."""
    found = [_read(job / f"outcomes-{i}.jsonl") for i in range(workers)]
    for test, row in tests.items():
        of_workers = [each.get(test) for each in found]
        there = [each for each in of_workers if each]
        differ = _differences(of_workers)
        words = "\n".join([*(each["words"] for each in there), *differ]).strip()
        seconds = max((each["seconds"] for each in there), default=0.0)
        failed = differ or there[0]["outcome"] == "failed"
        if failed and len(there) < workers:
            words += f"\n{log[-6000:]}"
        outcome = "failed" if failed else there[0]["outcome"]
        yield test, Outcome(row, outcome, words, seconds)
        if differ or (failed and workers > 1):
            return


def _differences(of_workers: Sequence[dict[str, Any] | None]) -> list[str]:
    """Describe how the outcomes of the workers differ."""
    missing = [i for i, found in enumerate(of_workers) if found is None]
    if missing:
        return [f"no outcome on worker {', '.join(map(str, missing))}"]
    values = {
        key: [found[key] for found in of_workers if found]
        for key in ("outcome", "variables")
    }
    return [
        f"{key} of the workers: {each}"
        for key, each in values.items()
        if any(value != each[0] for value in each)
    ]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {found["test"]: found for found in map(json.loads, lines)}


def main(strategy: str, *tests: str) -> int:
    """Print the outcome of each test, and return the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = run(strategy, Path(directory), tests)
    for test, found in outcomes.items():
        print(f"{found.outcome:8} {found.seconds:6.2f} s  {test}")
        if found.outcome == "failed":
            print(found.words)
    failed = [test for test in outcomes if outcomes[test].outcome == "failed"]
    print(
        f"{strategy}: {len(outcomes)} tests, {len(failed)} failed, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
