"""Run the steps of a check, all of them, and say which failed in one closing table.

    python -m tests.check [--seed=N] [--all-engines] STEP...

A step is one of `TARGETS` of the Makefile, the gate, or a folder of tests. After
the step `wheel`, tests run on the built wheel. tests/results.py keeps the results of parts.
"""

import argparse
import contextlib
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from . import parts, results

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
ON_WHEEL = ROOT / "build" / "check"
TARGETS = ("lint", "types", "wheel", "docs", "doctests")
BESIDE_EACH_OTHER = {*TARGETS} - {"wheel"}
"""The steps that run at the same time where they are named in a row: each has one process."""
# Each test has a limit of its own. Where a process hangs all the same, this ends the step.
LIMIT_OF_THE_GATE = 1500.0  # seconds
LIMIT_OF_A_PART = 5400.0  # seconds
NO_TESTS = 5
"""The exit status of pytest where a selection is empty."""
OUT_OF_TIME = 124


@dataclass
class Outcome:
    """How a step ended; `status` is None if it was not run."""

    step: str
    status: int | None = None
    seconds: float = 0.0
    results: list[dict[str, Any]] = field(default_factory=list)

    def count(self, what: str) -> int:
        """The number of tests that passed, or were skipped."""
        return sum(result[what] for result in self.results)

    def tests(self, what: str) -> list[str]:
        """The tests that failed, or were retried."""
        return [test for result in self.results for test in result[what]]

    def __str__(self) -> str:
        word = {0: "passed", None: "not run"}.get(self.status, "FAILED")
        tests = f"{self.count('passed')} tests passed" if self.results else ""
        return f"{self.step:16} {word:8} {self.seconds:6.0f} s  {tests}".rstrip()


def selections(part: str, seed: int) -> list[list[str]]:
    """Returns the options of each run of pytest that a part takes.

    A process that is the chief of a cluster runs no other tests, and tests that change what
    the machine has in common run one at a time.
    """
    # The tests of a file share a process, and so those of a cluster.
    in_two = ["-n2", "--dist=loadfile", "--no-loadscope-reorder"]
    in_two += ["--max-worker-restart=3", f"--randomly-seed={seed}"]
    if part == parts.GATE:
        # What makes it long is to be seen in each run.
        in_two += ["--gate", "--durations=40", "--durations-min=3"]
        files = sorted(parts.TESTS.glob("*/test_*.py"))
        of_clusters = [str(f) for f in files if "mark.in_gate" in f.read_text()]
        return [
            [*in_two, "-m", "not cluster", str(TESTS)],
            [*in_two, "-m", "cluster", *of_clusters],
        ]
    return [
        [*in_two, "-m", "not namespaces and not thorough", f"{TESTS}/{part}"],
        ["-pno:randomly", "-m", "namespaces and not thorough", f"{TESTS}/{part}"],
    ]


def run_tests(part: str, seed: int, on_wheel: bool, options: Sequence[str]) -> Outcome:
    """Runs the tests of a part, all its selections."""
    outcome = Outcome(part, 0)
    limit = LIMIT_OF_THE_GATE if part == parts.GATE else LIMIT_OF_A_PART
    deadline = time.monotonic() + limit
    env = dict(os.environ)
    if on_wheel:
        env |= dict.fromkeys(("PYTHONPATH", "TFDIST_WHEEL"), f"{ON_WHEEL}/site")
    for chosen in selections(part, seed):
        with tempfile.TemporaryDirectory() as directory:
            record = Path(directory, "record")
            command = [sys.executable, "-m", "pytest", f"-c{ROOT}/setup.cfg"]
            command += [f"--rootdir={ROOT}", "-pno:cacheprovider", f"--record={record}"]
            status = run_in_time(
                [*command, *options, *chosen],
                deadline - time.monotonic(),
                cwd=ON_WHEEL if on_wheel else ROOT,
                env=env,
            )
            if record.exists():
                outcome.results.append(json.loads(record.read_text()))
        outcome.status = outcome.status or (0 if status == NO_TESTS else status)
    if not outcome.count("passed"):
        outcome.status = outcome.status or NO_TESTS
    return outcome


def run_in_time(command: Sequence[str], seconds: float, **options: Any) -> int:
    """Runs a command with all that it starts, which end if it takes too long."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        print(f"\nended, since its time was over: {shlex.join(command)}", flush=True)
        return OUT_OF_TIME
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and its group, unless all has ended."""
    if process.poll() is None:
        process.terminate()  # Pytest says which tests were running.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def groups_of(steps: Iterable[str]) -> list[list[str]]:
    """Returns the steps once each, those that run at the same time together. Pure."""
    groups: list[list[str]] = []
    for step in dict.fromkeys(steps):
        if groups and BESIDE_EACH_OTHER.issuperset([step, *groups[-1]]):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def run(
    group: Sequence[str], seed: int, on_wheel: bool, options: Sequence[str]
) -> list[Outcome]:
    """Runs the steps of a group, at the same time."""
    began = time.monotonic()
    if group[0] in TARGETS:
        return list(_make(group, began))
    print(f"\n--- {group[0]}", flush=True)
    outcome = run_tests(group[0], seed, on_wheel, options)
    outcome.seconds = time.monotonic() - began
    return [outcome]


def _make(targets: Sequence[str], began: float) -> Iterator[Outcome]:
    """Yields how each target ended, once it has printed its output in one piece."""
    command, pipe = ("make", "--no-print-directory"), subprocess.PIPE
    start = functools.partial(
        subprocess.Popen, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT
    )
    processes = {target: start([*command, target]) for target in targets}
    try:
        for target, process in processes.items():
            output = process.communicate()[0].decode(errors="replace")
            print(f"\n--- {target}\n{output}", flush=True)
            yield Outcome(target, process.returncode, time.monotonic() - began)
    finally:
        for process in processes.values():
            process.kill()  # Of one that has ended, nothing.


def result_of(outcome: Outcome, seed: int) -> dict[str, Any]:
    """Returns what is kept of a part's run."""
    return {
        "date": date.today().isoformat(),
        "passed": outcome.count("passed"),
        "skipped": outcome.count("skipped"),
        "failed": outcome.tests("failed"),
        "retried": outcome.tests("retried"),
        "status": outcome.status,
        "seconds": round(outcome.seconds),
        "load": max((each["load"] for each in outcome.results), default=None),
        "seed": seed,
    }


def table(outcomes: Iterable[Outcome]) -> str:
    """Returns a line for each step, and for each test that failed or was run twice."""
    outcomes = list(outcomes)
    # To paste into a shell: `make` runs a Python that is not in its PATH.
    again = f"{shlex.quote(_python())} -m pytest"
    lines = [str(each) for each in outcomes]
    for each in outcomes:
        lines += [f"run twice: {test}" for test in each.tests("retried")]
        lines += [f"FAILED: {again} {shlex.quote(it)}" for it in each.tests("failed")]
    return "\n".join(lines)


def _python() -> str:
    """This Python: its path from the root if it is below, as in .venv/bin."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def main(arguments: Sequence[str]) -> int:
    """Runs the steps, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.check", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of tests")
    parser.add_argument(
        "--all-engines",
        action="store_true",
        help="fail where an engine is not installed, in place of skipping its tests",
    )
    known = (*TARGETS, parts.GATE, *parts.PARTS)
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        default=parts.PARTS,
        help=f"of {', '.join(known)}; without any, all parts, which takes more than an hour",
    )
    flags = parser.parse_args(arguments)
    if unknown := [step for step in flags.steps if step not in known]:
        parser.error(f"no step is called {unknown[0]!r}: choose of {', '.join(known)}")
    # Whoever ends this process ends what it started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = ["--all-engines"] if flags.all_engines else []
    outcomes: dict[str, Outcome] = {}
    for group in groups_of(flags.steps):
        on_wheel = "wheel" in outcomes
        if on_wheel and outcomes["wheel"].status != 0:
            outcomes |= {step: Outcome(step) for step in group}
            continue
        outcomes |= zip(group, run(group, flags.seed, on_wheel, options), strict=True)
        if group[0] in parts.PARTS:
            results.keep(group[0], result_of(outcomes[group[0]], flags.seed))
    print(f"\n{table(outcomes.values())}", flush=True)
    return 0 if all(each.status == 0 for each in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
