"""Runs scripts under a strategy, in as few jobs as it can.

All scripts share one job, to start TensorFlow and the cluster once. A script that fails
ends its job, and the others go on in a new one; a script that does not end in time, or
whose job ends without a word, runs once more in a job of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = Path(__file__).with_name("program.py")
SCRIPTS = PROGRAM.parent.parent / "scripts"
SYNCHRONOUS = ("multi_worker", "ring")
LAUNCH = {
    "parameter_server": ["--num_ps=2", "--num_workers=2", "--program=coordinator"],
    "multi_worker": ["--num_ps=0", "--num_workers=2", "--program=every_task"],
    "ring": ["--num_ps=0", "--num_workers=2", "--program=coordinator"],
}
STARTED = "started"  # the file that the program makes before its first script
DEADLINE = 500.0  # seconds, for one script; the first one starts TensorFlow
_POLL = 0.1  # seconds
_LINES = 12  # of the log of a job that ended without a word


@dataclass(frozen=True)
class Outcome:
    """What a script came to under a strategy.

    Attributes:
        metrics: The figures of its quality, by name.
        weights: Of its models, for each task that ran it.
        error: What it raised, or "".
        refused: Whether tfdist itself raised it.
        traceback: Of the error, or the end of the job's log.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    weights: tuple[tuple[np.ndarray, ...], ...] = ()
    error: str = ""
    refused: bool = False
    traceback: str = ""

    @property
    def fails(self) -> bool:
        """Whether it ended with an error that is no refusal."""
        return bool(self.error) and not self.refused


@dataclass(frozen=True)
class Way:
    """How scripts are run.

    Attributes:
        strategy: One of `LAUNCH`, or `plain` for Keras alone.
        folder: Has the scripts.
        deadline: Seconds that a script may take.
        flags: More flags of the launcher.
        options: More arguments of the strategy.
    """

    strategy: str
    folder: Path = SCRIPTS
    deadline: float = DEADLINE
    flags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def run(way: Way, names: Sequence[str]) -> dict[str, Outcome]:
    """Runs scripts; returns what each came to."""
    outcomes: dict[str, Outcome] = {}
    queue = [list(names)]
    while queue:
        together = queue.pop(0)
        with tempfile.TemporaryDirectory(prefix=f"{way.strategy}-") as directory:
            began = time.monotonic()
            log = _run_job(way, together, Path(directory))
            seconds = time.monotonic() - began
            found = {
                each: _read(Path(directory), each, way.strategy) for each in together
            }
            has_started = (Path(directory) / STARTED).exists()
        outcomes |= {name: outcome for name, outcome in found.items() if outcome}
        rest = [name for name in together if name not in outcomes]
        if not rest:
            continue
        if any(outcome and outcome.fails for outcome in found.values()):
            queue.append(rest)
        elif len(together) == 1 or not has_started:
            error = (
                f"did not end within {way.deadline:.0f} s"
                if seconds >= way.deadline
                else "its process ended without a word"
            )
            outcomes |= dict.fromkeys(rest, Outcome(error=error, traceback=log))
        else:
            queue += [[rest[0]], rest[1:]] if rest[1:] else [rest]
    return {name: outcomes[name] for name in names}


def _run_job(way: Way, names: list[str], directory: Path) -> str:
    """Runs a job until it ends or stands still; returns the end of what it printed."""
    output = directory / "output.log"
    command = [sys.executable]
    if flags := LAUNCH.get(way.strategy):
        command += ["-m", "launch.local", *flags, *way.flags]
        command += [f"--log_dir={directory}/logs", "--startup_timeout=200"]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    env.pop("TF_CONFIG", None)
    options = json.dumps(dict(way.options))
    with output.open("wb") as file:
        job = subprocess.Popen(
            [*command, PROGRAM, way.strategy, options, directory, way.folder, *names],
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(job, directory, way.deadline)
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait()
    return "\n".join(output.read_text(errors="replace").splitlines()[-_LINES:])


def _wait(job: subprocess.Popen, directory: Path, deadline: float) -> None:
    written, since = 0, time.monotonic()
    while job.poll() is None and time.monotonic() - since < deadline:
        if (count := len(list(directory.glob("*.json")))) > written:
            written, since = count, time.monotonic()
        time.sleep(_POLL)


def _read(directory: Path, name: str, strategy: str) -> Outcome | None:
    """Returns what a script came to, if all of its tasks say so, or one has failed."""
    tasks = sorted(directory.glob(f"{name}-*.json"))
    found = [json.loads(path.read_text()) for path in tasks]
    # The first to fail says why; the others lost a peer.
    failed = [each for each in found if "error" in each]
    failed.sort(key=lambda each: (each["refused"], each["when"]))
    if failed and (not failed[0]["refused"] or len(failed) == _tasks(strategy)):
        keys = ("error", "refused", "traceback")
        return Outcome(**{key: failed[0][key] for key in keys})
    if failed or len(found) < _tasks(strategy):
        return None
    weights = []
    for path in tasks:
        with np.load(path.with_suffix(".npz")) as file:
            weights.append(tuple(file[key] for key in file.files))
    return Outcome(found[0]["metrics"], tuple(weights))


def _tasks(strategy: str) -> int:
    """How many tasks run the script."""
    return 2 if strategy == "multi_worker" else 1
