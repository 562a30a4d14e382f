"""Ten seeded schedules against a real training, one after the other."""

import dataclasses
from pathlib import Path

import pytest

import launch
from launch import chaos
from launch.fault.faults import FAULT_KINDS, LINK_KINDS
from launch.fault.invariants import Invariant
from tfdist.checkpoint.__main__ import main as check_checkpoints

from ..support.deadline import PROGRAM_DEADLINE, STARTUP_DEADLINE

TRAINING = Path(__file__).resolve().parents[2] / "benchmarks" / "chaos_training.py"
SEEDS = (1, 5, 3, 11, 28, 7, 22, 16, 49, 9)
STEPS = 40
KILLED_OR_NOT = ("kill", "stop", *sorted(LINK_KINDS))


def schedules(tasks):
    """The faults of each seed, within its own steps of the training."""
    for turn, seed in enumerate(SEEDS):
        for fault in chaos.draw(seed, tasks, STEPS, KILLED_OR_NOT, count=1).faults:
            yield dataclasses.replace(fault, step=fault.step + turn * STEPS)


def newest_can_be_read(directory):
    status = check_checkpoints(["", str(directory)])
    return Invariant("the newest checkpoint can be read", status == 0, str(status))


@pytest.mark.cluster
def test_ten_schedules(tmp_path):
    kept = tmp_path / "kept"
    flags = (f"--steps={STEPS}", f"--epochs={len(SEEDS) + 1}", "--pace=0.05")
    job = launch.make_job(
        launch.local_cluster(num_ps=1, num_workers=2),
        launch.Program(str(TRAINING), (*flags, "--checkpoint_interval=0.5")),
        log_dir=str(tmp_path / "logs"),
        checkpoint_dir=str(kept),
        max_restarts=20,
        restart_window=1.0,
        startup_timeout=STARTUP_DEADLINE,
    )
    faults = tuple(schedules([plan.name for plan in job.plans]))
    outcome = chaos.run(
        job,
        chaos.Schedule(faults),
        deadline=PROGRAM_DEADLINE,
        checkpoint_dir=str(kept),
        checks=[lambda: newest_can_be_read(kept)],
    )
    for each in outcome.injections:
        print(each.fault.step, each.fault, each.seconds)
    assert outcome.holds, outcome.invariants
    assert {each.fault for each in outcome.injections} == set(faults)
    assert all(each.seconds is not None for each in outcome.injections)


def test_the_schedules_kill_every_role_and_do_all_else():
    faults = list(schedules(["chief", "ps:0", "worker:0", "worker:1"]))
    assert len(faults) == 10
    killed = {fault.task.partition(":")[0] for fault in faults if fault.kind == "kill"}
    assert killed == {"chief", "ps", "worker"}
    assert {fault.kind for fault in faults} == set(KILLED_OR_NOT) < set(FAULT_KINDS)
