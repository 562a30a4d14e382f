"""Fault tolerance of a training: 50 seeded schedules of faults on 2 ps and 2 workers.

    python benchmarks/chaos.py --json=benchmarks/measured/chaos.json
    python benchmarks/chaos_report.py       # into docs/measured-faults.md

Each schedule runs a separate job of chaos_training.py. Its checkpoints are on a small file
system that can be filled, so this needs root (mount(8)). Runs that the JSON file already
contains are not repeated, so an interrupted benchmark resumes.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from absl import app, flags
from chaos_report import Run
from turns import environment, keep, kept

import launch
from launch import chaos
from launch.fault import faults
from launch.fault.invariants import Invariant

TRAINING = Path(__file__).with_name("chaos_training.py")
EPOCHS, STEPS, PACE = 4, 50, 0.03
INTERVAL = 1.0  # seconds between checkpoints
# A kill is what there is most to learn from.
KINDS = (faults.KILL, *faults.FAULT_KINDS)
DEADLINE = 300.0  # seconds
# Beyond one interval: until a checkpoint that is begun is written.
SLACK = 2.0  # seconds


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("first_seed", 0, "Seed of the first schedule.")
    flags.DEFINE_integer("schedules", 50, "How many schedules.", lower_bound=1)
    flags.DEFINE_integer("faults", 2, "Faults of a schedule.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write every run to this file.", required=True)


def allowed_loss(schedule: chaos.Schedule) -> float:
    """How many seconds of work may be repeated.

    One checkpoint interval, and a second one if the newest checkpoint is damaged. Faults
    that keep the program or the disk busy add to it.
    """
    damaged = sum(fault.kind == faults.CORRUPT for fault in schedule.faults)
    disturbed = sum(fault.seconds for fault in schedule.faults)
    return INTERVAL * (1 + damaged) + disturbed + SLACK


def measure(seed: int, count: int) -> Run:
    """Runs the schedule of a seed."""
    with tempfile.TemporaryDirectory() as directory, _tmpfs(directory) as kept:
        job = launch.make_job(
            launch.local_cluster(num_ps=2, num_workers=2),
            launch.Program(
                str(TRAINING),
                (
                    f"--epochs={EPOCHS}",
                    f"--steps={STEPS}",
                    f"--pace={PACE}",
                    f"--checkpoint_interval={INTERVAL}",
                ),
            ),
            log_dir=os.path.join(directory, "logs"),
            checkpoint_dir=kept,
            max_restarts=5,
            echo=False,
        )
        tasks = [plan.name for plan in job.plans]
        schedule = chaos.draw(seed, tasks, EPOCHS * STEPS, KINDS, count)
        outcome = chaos.run(
            job,
            schedule,
            deadline=DEADLINE,
            checkpoint_dir=kept,
            checks=[lambda: _readable(kept)],
            may_fail=True,
        )
    return _run(outcome)


def _run(outcome: chaos.Outcome) -> Run:
    ending, allowed = outcome.ending, allowed_loss(outcome.schedule)
    again = outcome.progress.most_repeated
    loss = Invariant(
        "no more than a checkpoint interval is lost",
        again <= allowed,
        f"{again:.1f} s of at most {allowed:.1f}",
    )
    result = outcome.progress.result
    return Run(
        seed=outcome.schedule.seed or 0,
        faults=[dataclasses.asdict(fault) for fault in outcome.schedule.faults],
        recovered=[
            {**dataclasses.asdict(each.fault), "recovery": each.seconds}
            for each in outcome.injections
        ],
        status=ending.status,
        reason=ending.reason,
        seconds=ending.seconds,
        steps=result.steps if result else None,
        expected=EPOCHS * STEPS,
        done_again=again,
        broken=[
            f"{each.name}: {each.seen}"
            for each in (*outcome.invariants, loss)
            if not each.holds
        ],
    )


@contextmanager
def _tmpfs(directory: str) -> Iterator[str]:
    path = os.path.join(directory, "kept")
    os.mkdir(path)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", path], check=True
    )
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def _readable(directory: str) -> Invariant:
    command = [sys.executable, "-m", "tfdist.checkpoint", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A program that failed at once may have written none.
    return Invariant(
        "the newest checkpoint can be read", done.returncode != 1, done.stdout.strip()
    )


def main(argv: list[str]) -> None:
    """Runs the missing schedules."""
    values = flags.FLAGS
    runs = kept(values.json).get("runs", [])
    have = {run["seed"] for run in runs}
    for seed in range(values.first_seed, values.first_seed + values.schedules):
        if seed in have:
            continue
        run = measure(seed, values.faults)
        runs.append(dataclasses.asdict(run))
        about = environment("tensorflow", "keras")
        keep(values.json, {"environment": about, "runs": runs})
        struck = ", ".join(
            f"{each['kind']} {each['task']} {each['recovery'] or float('nan'):.1f} s"
            for each in run.recovered
        )
        print(
            f"{seed}: {run.outcome} after {run.seconds:.0f} s ({struck}) {run.broken}",
            flush=True,
        )


if __name__ == "__main__":
    define_flags()
    app.run(main)
