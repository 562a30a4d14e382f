"""Run the feature tests on all workers of a cluster, in step.

    python -m launch.local --num_ps=0 --num_workers=2 tests/features/in_step.py \
        DIRECTORY SECONDS --strategy=multi_worker TEST...
    python tests/features/in_step.py DIRECTORY SECONDS --strategy=ring TEST...

SECONDS is what a test may take. The tests to run are written to DIRECTORY/tests.json,
with the rows of the table that they prove, and what came out of each to
DIRECTORY/outcomes-INDEX.jsonl. A test passes if it passes on every worker, and leaves
them with the same variables. Once one failed, nobody knows what the other workers wait
for: the job ends, and another one has to run the rest; see tests/support/feature_jobs.py.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tf_config

ROOT = Path(__file__).resolve().parents[2]


class InStep:
    """Writes the outcome of each test, and waits for the other workers' outcomes.

    Args:
        directory: Where the outcomes are.
        index: This worker's.
        workers: How many run the tests.
        timeout: How far a worker may be behind the others, in seconds.
    """

    def __init__(
        self, directory: Path, index: int, workers: int, timeout: float
    ) -> None:
        self._directory, self._index, self._timeout = directory, index, timeout
        self._files = [directory / f"outcomes-{i}.jsonl" for i in range(workers)]
        self._ran = 0
        self._phases: list[Any] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Writes which tests there are, and the row of the table that each proves."""
        if self._index == 0:
            tests = {item.nodeid: _row_of(item) for item in session.items}
            (self._directory / "tests.json").write_text(json.dumps(tests))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Ends the process after a test that did not pass on every worker."""
        self._phases.append(report)
        if report.when != "teardown":
            return
        failed = [each for each in self._phases if each.failed]
        skipped = any(each.skipped for each in self._phases)
        mine = {
            "test": report.nodeid,
            "outcome": "failed" if failed else "skipped" if skipped else "passed",
            "words": "\n".join(each.longreprtext for each in failed),
            "seconds": round(sum(each.duration for each in self._phases), 2),
            "variables": dict(report.user_properties).get("variables"),
        }
        self._phases = []
        with self._files[self._index].open("a") as file:
            print(json.dumps(mine), file=file)
        self._ran += 1
        outcomes = list(self._outcomes())
        if len(self._files) > 1 and not _same(outcomes, len(self._files)):
            sys.stdout.flush()
            # Collectives that the others are in keep Python from ending.
            os._exit(1)

    def _outcomes(self) -> Iterator[dict[str, Any]]:
        """The outcome of this test on each worker, unless one takes too long."""
        deadline = time.monotonic() + self._timeout
        for file in self._files:
            while time.monotonic() < deadline:
                lines = file.read_text().splitlines(True) if file.exists() else []
                if len(lines) >= self._ran and lines[self._ran - 1].endswith("\n"):
                    yield json.loads(lines[self._ran - 1])
                    break
                time.sleep(0.01)


def _row_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("feature")
    return marker.args[0] if marker else ""


def _same(outcomes: list[dict[str, Any]], workers: int) -> bool:
    """Whether all workers passed a test, and have the same variables."""
    kinds = {(each["outcome"], each["variables"]) for each in outcomes}
    return len(outcomes) == workers and len(kinds) == 1 and "failed" not in kinds.pop()


def main(directory: str, timeout: str, *args: str) -> int:
    """Runs pytest with these arguments, and returns its exit status."""
    index, workers = 0, 1
    if "--strategy=multi_worker" in args:
        config = tf_config.TFConfig.from_environment()
        index, workers = config.task.index, len(config.cluster.worker)
    # A path of the files of all: what the chief saves, the others load.
    os.environ["FEATURES_DIRECTORY"] = directory
    options = ["-q", "-c", f"{ROOT}/setup.cfg", f"--rootdir={ROOT}", "-p", "no:xdist"]
    options += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:rerunfailures"]
    options += [f"--basetemp={directory}/tmp-{index}"]
    options += [f"--timeout={timeout}", "--timeout-method=thread"]
    in_step = InStep(Path(directory), index, workers, float(timeout))
    return int(pytest.main([*options, *args], [in_step]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
