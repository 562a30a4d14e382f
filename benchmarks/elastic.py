"""Whether throughput follows the number of workers: 1, then 4, then 2 of them.

    python benchmarks/elastic.py --json=benchmarks/measured/elastic.json

One worker trains at first. Three more serve after `--seconds`, and two of these are killed
after as many again; training goes on for as long. A step sleeps for `--step_seconds`, so
that the rate is that of the workers and not that of the cores that they share. The examples
are their own numbers, read by leases: none may be missed, and those seen again are at most
what the killed workers had under way.
"""

import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from chaos_report import environment
from exactly_once import count

import launch
from launch.fault import progress
from launch.job import Job
from launch.loopback import make_log_dir
from launch.supervise.handle import Handle
from tf_config import contract

TRAINING, LATE = (
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("elastic_training", "late_server")
)
WORKERS = 4
GONE = ("worker:2", "worker:3")
EXAMPLES, BATCH = 512, 4
WINDOW = 2.0  # seconds over which a rate is taken
NEAR = 0.2  # The share by which it may differ from what is expected.
FIRST_STEP = 120.0  # seconds within which training has to begin
PAUSE = 0.05  # seconds
ENDS = 60.0  # seconds within which the last epoch has to end

Samples = Sequence[tuple[float, int]]


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 3, "How often to run it.", lower_bound=1)
    flags.DEFINE_float("seconds", 10.0, "Between two changes.", lower_bound=2 * WINDOW)
    flags.DEFINE_float("step_seconds", 0.2, "How long a step sleeps.", lower_bound=0)
    flags.DEFINE_string("json", None, "Write every run to this file.")


def make_job(directory: Path, step_seconds: float) -> Job:
    """Returns the job. All workers but the first serve once the file `join` is there."""
    numbers = directory / "numbers.npy"
    np.save(numbers, np.arange(EXAMPLES))
    job = launch.make_job(
        launch.local_cluster(num_ps=1, num_workers=WORKERS),
        launch.Program(
            TRAINING,
            (
                f"--examples={EXAMPLES}",
                f"--batch={BATCH}",
                f"--step_seconds={step_seconds}",
                f"--numbers={numbers}",
                f"--enough={directory / 'enough'}",
                f"--result={directory / 'result.json'}",
            ),
        ),
        log_dir=str(directory / "logs"),
        min_workers=1,
        echo=False,
    )
    told = {contract.PROGRESS: str(directory / "progress.jsonl")}
    plans = []
    for plan in job.plans:
        if plan.name.startswith("worker:") and plan.name != "worker:0":
            argv = (sys.executable, LATE, str(directory / "join"))
            plan = dataclasses.replace(plan, argv=argv)
        plans.append(dataclasses.replace(plan, env={**plan.env, **told}))
    return dataclasses.replace(job, plans=tuple(plans))


def measure(seconds: float, step_seconds: float) -> dict[str, Any]:
    """Runs it once.

    Returns:
        The `rates` of the three numbers of workers, in steps per second; how long each
        change took to be seen in them (`followed`, in seconds); and how many examples were
        `missed` and seen `again`.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = str(directory / "progress.jsonl")
        job = make_job(directory, step_seconds)
        make_log_dir(job.log_dir)
        with Handle(job) as handle:
            started = handle.next_event()
            if "pids" not in started:
                raise SystemExit(started.get("error", "the job did not start"))
            pids = started["pids"]
            deadline = time.monotonic() + FIRST_STEP
            while progress.read(path).furthest == 0:
                if time.monotonic() > deadline or handle.poll(PAUSE) is not None:
                    raise SystemExit(f"no step within {FIRST_STEP:g} s")
            times = [time.time()]
            time.sleep(seconds)
            times.append(time.time())
            (directory / "join").touch()
            time.sleep(seconds)
            times.append(time.time())
            for task in GONE:
                os.kill(pids[task], signal.SIGKILL)
            time.sleep(seconds)
            times.append(time.time())
            (directory / "enough").touch()
            deadline = time.monotonic() + ENDS
            while (status := handle.poll(PAUSE)) is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"training did not end within {ENDS:g} s")
        result = json.loads((directory / "result.json").read_text())
        samples = progress.read(path).steps
    missed, again = count(result["times"], result["epochs"])
    return {
        "seconds": seconds,
        "step_seconds": step_seconds,
        "status": status,
        **judge(samples, times),
        "steps": result["steps"],
        "epochs": result["epochs"],
        "examples": EXAMPLES,
        "missed": missed,
        "again": again,
        # Each message has a step.
        "again_at_most": len(GONE) * BATCH,
        "samples": [(round(when - times[0], 2), step) for when, step in samples],
    }


def judge(samples: Samples, times: Sequence[float]) -> dict[str, Any]:
    """Returns the rates, and how long they took to follow.

    Args:
        samples: When how many steps had finished.
        times: When training began with a worker, when three came, when two went, and when
            it ended.
    """
    began, came, went, ended = times
    one = rate(samples, (began + came) / 2, came)
    four, two = WORKERS * one, (WORKERS - len(GONE)) * one
    return {
        "rates": [
            round(rate(samples, (since + until) / 2, until), 1)
            for since, until in pairwise(times)
        ],
        "followed": [
            followed(samples, came, went, four),
            followed(samples, went, ended, two),
        ],
    }


def rate(samples: Samples, since: float, until: float) -> float:
    """Returns the steps per second between two times.

    >>> rate([(0.0, 0), (1.0, 10), (2.0, 20), (3.0, 40)], 1.0, 3.0)
    15.0
    """
    return (_steps_at(samples, until) - _steps_at(samples, since)) / (until - since)


def _steps_at(samples: Samples, when: float) -> int:
    place = bisect_right(samples, when, key=lambda sample: sample[0])
    return samples[place - 1][1] if place else 0


def followed(
    samples: Samples, since: float, until: float, expected: float
) -> float | None:
    """Returns after how many seconds the rate was as expected; None if it never was.

    It is the beginning of the first `WINDOW` whose rate is near the expected one.

    >>> steady = [(t / 10, t if t < 50 else 50 + 4 * (t - 50)) for t in range(100)]
    >>> followed(steady, 4.0, 9.0, 40.0)
    0.6
    """
    begins = since
    while begins + WINDOW <= until:
        now = rate(samples, begins, begins + WINDOW)
        if abs(now - expected) <= NEAR * expected:
            return round(begins - since, 1)
        begins += 0.1
    return None


def main(argv: list[str]) -> None:
    """Runs it, and prints what happened."""
    values = flags.FLAGS
    runs = []
    for _ in range(values.repeats):
        runs.append(measure(values.seconds, values.step_seconds))
        if values.json:
            kept = {"environment": environment(), "runs": runs}
            Path(values.json).write_text(json.dumps(kept) + "\n")
        print(_line(runs[-1]), flush=True)
    for name, place in (("three came", 0), ("two had gone", 1)):
        seconds = [run["followed"][place] for run in runs]
        if None in seconds:
            print(f"after {name}, the rate did not follow in some runs: {seconds}")
        else:
            middle = statistics.median(seconds)
            print(f"after {name}, the rate followed in {middle:.1f} s ({seconds})")


def _line(run: dict[str, Any]) -> str:
    rates = ", ".join(f"{each:.1f}" for each in run["rates"])
    return (
        f"1, 4, 2 workers: {rates} steps/s; followed after {run['followed']} s; "
        f"{run['missed']} missed, {run['again']} of at most {run['again_at_most']} "
        f"seen again in {run['epochs']} epochs of {run['examples']}"
    )


if __name__ == "__main__":
    define_flags()
    app.run(main)
