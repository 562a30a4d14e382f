"""Cases that the tasks of one job run together, on request of the tests.

A file of cases is a program, which every task that trains runs:

    python -m launch.local --num_ps=0 --num_workers=2 tests/support/multi_worker_cases.py \
        DIRECTORY [CASE...]

It runs the cases named on its command line or, without any, those that `Job` requests:
a file of tests starts one job, and only the cases of the selected tests run. Each task
writes what a case returned to DIRECTORY/CASE-INDEX.pkl.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deadline import DEADLINE, STARTUP_FLAG
from jobs import SUPPORT, path_with

_REQUESTS = "requests"  # the file that `Job` adds the name of each case to
_END = "-"
_POLL = 0.02  # seconds
# Until a case has ended, the start of the job included. A test may wait for it, and twice
# for the end of the job: together that is less than pytest's limit.
_CASE_TIMEOUT = 300.0  # seconds
# Without a request, after which the tasks of a test run that was killed end.
_IDLE_TIMEOUT = 600.0  # seconds

STRATEGIES = {
    "MultiWorkerMirroredStrategy": ["--num_workers=2"],
    "RingStrategy": ["--num_workers=2", "--program=coordinator"],
}
"""The synchronous strategies that give one process's results, and how each is launched."""

Case = Callable[[Any], dict[str, Any]]


def run_cases(
    directory: str,
    names: Sequence[str],
    cases: dict[str, Case],
    strategy: Any,
    index: int,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Run cases in a task of the job, and write what each returned or raised.

    Args:
        directory: Where the results go.
        names: Of the cases; if empty, those that `Job` requests.
        cases: All cases, by name. After one with a true attribute `is_last`, the task
            ends.
        strategy: Passed to each case.
        index: Of this task, among those that run the program.
        before: Called before each case.
    """
    for name in names or _requested(Path(directory, _REQUESTS)):
        before()
        try:
            found = cases[name](strategy)
        except Exception:
            found = {"error": traceback.format_exc()}
            print(name, found["error"], flush=True)
        found["replicas"] = strategy.num_replicas
        found["is_last"] = getattr(cases[name], "is_last", False)
        unfinished = Path(directory, f"{name}-{index}.part")
        unfinished.write_bytes(pickle.dumps(found))
        unfinished.rename(unfinished.with_suffix(".pkl"))
        if found["is_last"]:
            # As a program that does not catch the error would: whoever waits for this
            # task finds it gone.
            os._exit(0)


def _requested(path: Path) -> Iterator[str]:
    count, since = 0, time.monotonic()
    while time.monotonic() - since < _IDLE_TIMEOUT:
        # The last line may be one that is being written.
        *lines, _ = path.read_text().split("\n")
        for name in lines[count:]:
            if name == _END:
                return
            yield name
            since = time.monotonic()
        count = len(lines)
        time.sleep(_POLL)
    raise TimeoutError(f"no case was asked for within {_IDLE_TIMEOUT:g} s")


class Job:
    """A job that runs cases as tests request them.

    A case that ends the job, or does not end, fails; the next one starts a new job.

    Args:
        program: The file of cases.
        directory: An empty one, for results and logs.
        launch: Options of `launch.local`, such as `--num_workers=2`.
        tasks: How many tasks run the program.
        env: More of the environment.
    """

    def __init__(
        self,
        program: str | Path,
        directory: Path,
        *launch: str,
        tasks: int = 2,
        **env: str,
    ) -> None:
        self._directory, self._tasks = directory, tasks
        self._found: dict[str, list[dict[str, Any]] | Exception] = {}
        self._command = [sys.executable, "-m", "launch.local", "--num_ps=0", *launch]
        self._command += [f"--log_dir={directory}/logs", STARTUP_FLAG]
        self._command += [str(program), str(directory)]
        self._env = {**os.environ, "PYTHONPATH": path_with(SUPPORT), **env}
        self._start()

    def _start(self) -> None:
        self._is_lost = False
        (self._directory / _REQUESTS).write_text("")
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __getitem__(self, name: str) -> list[dict[str, Any]]:
        """Run a case, unless it has run already, and return what each task found.

        Raises:
            RuntimeError: The job ended instead.
            TimeoutError: The case did not end in time.
        """
        if name not in self._found:
            if self._process.poll() is not None:
                self._start()
            self._found[name] = self._run(name)
        found = self._found[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _run(self, name: str) -> list[dict[str, Any]] | Exception:
        self._ask(name)
        paths = [self._directory / f"{name}-{i}.pkl" for i in range(self._tasks)]
        deadline = time.monotonic() + _CASE_TIMEOUT
        while True:
            has_ended = self._process.poll() is not None
            if all(path.exists() for path in paths):
                found = [load(path) for path in paths]
                ends = [each.pop("is_last") for each in found]
                if any(ends):
                    self._process.wait(DEADLINE)
                return found
            if has_ended:
                self._is_lost = True
                return RuntimeError(f"the job ended in {name}:\n{self._output()}")
            if time.monotonic() > deadline:
                self._is_lost = True
                self._terminate()
                return TimeoutError(f"{name} does not end:\n{self._output()}")
            time.sleep(_POLL)

    def _terminate(self) -> int:
        self._process.terminate()
        return self._process.wait(DEADLINE)

    def _ask(self, name: str) -> None:
        with (self._directory / _REQUESTS).open("a") as file:
            file.write(f"{name}\n")

    def _output(self) -> str:
        return (self._directory / "output").read_text(errors="replace")[-8000:]

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        """End the job, and check that it succeeds, unless a case has failed by its end."""
        self._ask(_END)
        try:
            status = self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            status = self._terminate()
        assert status == 0 or self._is_lost, self._output()


@contextlib.contextmanager
def jobs_by_strategy(
    program: str | Path, directories: pytest.TempPathFactory
) -> Iterator[Callable[[str], Job]]:
    """Gives a function that returns the job of a strategy, started on first use.

    Args:
        program: The file of cases, which makes the strategy that STRATEGY names.
        directories: Where the results go.
    """
    with contextlib.ExitStack() as stack:
        jobs: dict[str, Job] = {}

        def of(strategy: str) -> Job:
            if strategy not in jobs:
                job = Job(
                    program,
                    directories.mktemp(strategy),
                    *STRATEGIES[strategy],
                    tasks=2 if strategy == "MultiWorkerMirroredStrategy" else 1,
                    STRATEGY=strategy,
                )
                jobs[strategy] = stack.enter_context(job)
            return jobs[strategy]

        yield of


def under_each(
    names: Collection[str],
    ring_in_part: Collection[str],
    not_ring: Collection[str] = (),
) -> pytest.MarkDecorator:
    """Runs a test of `name` and `strategy` with each case under each strategy.

    Args:
        names: Of the cases.
        ring_in_part: Those that a part runs under the ring; `make features` runs all.
        not_ring: Those that need workers with programs of their own.
    """
    ring = "RingStrategy"
    left_out = {(name, ring) for name in names if name not in ring_in_part}
    return pytest.mark.parametrize(
        ("name", "strategy"),
        [
            pytest.param(
                *each, marks=[pytest.mark.thorough] if each in left_out else []
            )
            for each in ((name, strategy) for strategy in STRATEGIES for name in names)
            if each not in {(name, ring) for name in not_ring}
        ],
    )


def load(path: Path) -> dict[str, Any]:
    """Read what a task found."""
    return pickle.loads(path.read_bytes())
