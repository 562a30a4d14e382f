"""Counts how often each example is seen: without faults, and under 20 schedules of faults.

    python benchmarks/exactly_once.py --seeds=20 --json=exactly_once.json

The examples are their own numbers, and four workers read them by leases. Under a seed, one
worker is killed, one is stopped, one more comes, and the chief is killed and resumes, each at
a step that the seed draws. An example may be seen again if it was in flight at a fault of a
worker: in the message that the worker had. None may be missed. Runs that the JSON file has
already are not repeated, so an interrupted benchmark resumes.
"""

import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from turns import environment, keep, kept

import launch
from launch import chaos
from launch.fault import faults
from launch.fault.invariants import Invariant
from launch.job.job import Job

TRAINING, LATE = (
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("exactly_once_training", "late_server")
)
WORKERS = 4
MOST_STEPS = 100  # Of a message: what a lost worker leaves to be run again.
# A checkpoint does not wait longer than ten seconds for a stopped worker, and has its batches
# put back; a draw of launch.chaos stops it for up to four.
LONGER = 4
DEADLINE = 500.0  # seconds
LOG = 5000  # Characters of the chief's log that are kept of a run that does not hold.


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is trained on: so many numbers, so often, in batches of so many."""

    examples: int = 1_000_000
    epochs: int = 3
    batch: int = 64

    @property
    def steps(self) -> int:
        """How many steps that takes."""
        return self.epochs * -(-self.examples // self.batch)


def schedule(seed: int, steps: int) -> chaos.Schedule:
    """Returns the faults of a seed."""
    workers = [f"worker:{index}" for index in range(WORKERS)]
    found = []
    for kind, tasks in (
        (faults.KILL, workers),
        (faults.STOP, workers),
        (faults.KILL, ["chief"]),
    ):
        # One seed each, or the three would strike at the same step.
        [fault] = chaos.draw(3 * seed + len(found), tasks, steps, [kind], 1).faults
        found.append(dataclasses.replace(fault, seconds=LONGER * fault.seconds))
    return chaos.Schedule(tuple(sorted(found, key=lambda each: each.step)), seed)


def joins_at(seed: int, steps: int) -> int:
    """Returns the step at which one more worker comes under a seed."""
    return int(random.Random(seed).random() * 0.9 * steps)


def make_job(workload: Workload, directory: Path, joins: int | None) -> Job:
    """Returns the job, in which one more worker than `WORKERS` comes at a step."""
    numbers = directory / "numbers.npy"
    np.save(numbers, np.arange(workload.examples))
    flags_of_program = (
        *(f"--{name}={value}" for name, value in vars(workload).items()),
        f"--numbers={numbers}",
        f"--result={directory / 'result.json'}",
    )
    job = launch.make_job(
        launch.local_cluster(num_ps=1, num_workers=WORKERS + (joins is not None)),
        launch.Program(TRAINING, flags_of_program),
        log_dir=str(directory / "logs"),
        checkpoint_dir=str(directory / "kept"),
        max_restarts=5,
        min_workers=None if joins is None else WORKERS,
        echo=False,
    )
    plans = list(job.plans)
    if joins is not None:
        place = [plan.name for plan in plans].index(f"worker:{WORKERS}")
        argv = (sys.executable, LATE, str(joins))
        plans[place] = dataclasses.replace(plans[place], argv=argv)
    return dataclasses.replace(job, plans=tuple(plans))


def measure(seed: int | None, workload: Workload) -> dict[str, Any]:
    """Runs the schedule of a seed; None has no faults.

    Returns:
        What happened. `times` says how many examples were seen 0, 1, 2 and so on times, and
        `broken` what does not hold.
    """
    planned, joins = chaos.Schedule(()), None
    if seed is not None:
        planned = schedule(seed, workload.steps)
        joins = joins_at(seed, workload.steps)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        job = make_job(workload, directory, joins)
        outcome = chaos.run(
            job, planned, deadline=DEADLINE, checkpoint_dir=str(directory / "kept")
        )
        result = directory / "result.json"
        times = json.loads(result.read_text()) if result.exists() else []
        log = (directory / "logs" / "chief.log").read_text()
    struck = [each.fault for each in outcome.injections]
    found = [*outcome.invariants, *judge(times, struck, workload)]
    broken = [f"{each.name}: {each.seen}" for each in found if not each.holds]
    reported = outcome.progress.result
    return {
        "seed": seed,
        **vars(workload),
        "faults": [
            {**dataclasses.asdict(each.fault), "recovery": each.seconds}
            for each in outcome.injections
        ],
        "joins": joins,
        "joined": f"worker:{WORKERS} at " in log,
        "seconds": outcome.ending.seconds,
        "steps": reported.steps if reported else None,
        "expected": workload.steps,
        "times": times,
        "broken": broken,
        "log": log[-LOG:] if broken else "",
    }


def judge(
    times: Sequence[int], struck: Sequence[chaos.Fault], workload: Workload
) -> list[Invariant]:
    """What must hold of the counts.

    Args:
        times: How many examples were seen 0, 1, 2 and so on times.
        struck: The faults that there were.
        workload: What was trained on.
    """
    missed, again = count(times, workload.epochs)
    workers = sum(fault.task != "chief" for fault in struck)
    most = workers * MOST_STEPS * workload.batch
    return [
        Invariant("each is counted", sum(times) == workload.examples, str(times)),
        Invariant("none is missed", missed == 0, f"{missed} times"),
        Invariant("few are seen again", again <= most, f"{again} of at most {most}"),
    ]


def count(times: Sequence[int], epochs: int) -> tuple[int, int]:
    """Returns how often an example was missed, and how often one was seen again.

    Args:
        times: How many examples were seen 0, 1, 2 and so on times.
        epochs: How often each should be.

    >>> count([0, 2, 5, 90, 3], epochs=3)
    (9, 3)
    """
    off = [(number - epochs, examples) for number, examples in enumerate(times)]
    missed = sum(-each * examples for each, examples in off if each < 0)
    return missed, sum(each * examples for each, examples in off if each > 0)


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("first_seed", 0, "Of the first schedule.", lower_bound=0)
    flags.DEFINE_integer("seeds", 20, "How many schedules.", lower_bound=0)
    for field in dataclasses.fields(Workload):
        flags.DEFINE_integer(field.name, field.default, "Of the workload.")
    flags.DEFINE_string("json", None, "Write every run to this file.", required=True)


def main(argv: list[str]) -> None:
    """Runs what is missing."""
    values = flags.FLAGS
    names = [field.name for field in dataclasses.fields(Workload)]
    workload = Workload(**{name: values[name].value for name in names})
    runs = kept(values.json).get("runs", [])
    have = {run["seed"] for run in runs}
    first = values.first_seed
    for seed in (None, *range(first, first + values.seeds)):
        if seed in have:
            continue
        run = measure(seed, workload)
        runs.append(run)
        about = environment("tensorflow", "keras")
        keep(values.json, {"environment": about, "runs": runs})
        missed, again = count(run["times"], workload.epochs)
        struck = ", ".join(f"{each['kind']} {each['task']}" for each in run["faults"])
        print(
            f"seed {seed}: {missed} missed, {again} seen again, {run['seconds']:.0f} s "
            f"({struck}; joined: {run['joined']}) {run['broken']}",
            flush=True,
        )
    if broken := [run["seed"] for run in runs if run["broken"]]:
        sys.exit(f"something does not hold under the seeds {broken}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
