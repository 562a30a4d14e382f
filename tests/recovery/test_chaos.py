"""Faults of a job of stand-ins: real processes, without TensorFlow."""

import ast
import dataclasses
import os
import re
import textwrap
from pathlib import Path

import pytest

import launch
from launch import chaos
from launch.chaos import Fault, FaultError, Schedule
from launch.flags.errors import UsageError

from ..launch_programs.launcher import PROGRAMS
from ..support.deadline import DEADLINE
from ..support.raising import raises

# It keeps a checkpoint of each step, and ends once every fault is over.
PROGRAM = """
import os, sys, time
from launch import chaos

steps = int(sys.argv[1])
done = int(open("kept").read()) if os.path.exists("kept") else 0
for step in range(done + 1, steps + 1):
    time.sleep(0.05)
    with open("kept.new", "w") as file:
        file.write(str(step))
    os.rename("kept.new", "kept")
    chaos.report_step(step)
chaos.report_result(steps=step + int(os.environ.get("DOUBLED", 0)), expected=steps)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))

    def job(steps, **options):
        return launch.make_job(
            launch.local_cluster(1, 2),
            launch.Program("train.py", (str(steps),)),
            server=(str(PROGRAMS / "server.py"),),
            log_dir=str(tmp_path / "logs"),
            echo=False,
            **{"max_restarts": 9, "restart_window": 1.0, **options},
        )

    return job


def names(invariants):
    return [each.name.partition(",")[0] for each in invariants if not each.holds]


@pytest.mark.cluster
def test_a_job_recovers_from_each_fault_and_the_outcome_tells(job):
    faults = (
        Fault("kill", "worker:1", 0),
        Fault("kill", "ps:0", 20),
        Fault("stop", "chief", 60, seconds=0.5),
        Fault("kill", "chief", 80),
        Fault("stop", "worker:0", 100),
    )
    outcome = chaos.run(
        job(250, stall_timeout=3.0), Schedule(faults), deadline=DEADLINE
    )
    assert outcome.holds, outcome.invariants
    assert [each.fault for each in outcome.injections] == [*faults]
    assert all(each.seconds is not None for each in outcome.injections)
    assert outcome.progress.result.steps == outcome.progress.furthest == 250


def test_a_doubled_step_is_seen(job, monkeypatch):
    monkeypatch.setenv("DOUBLED", "1")
    outcome = chaos.run(job(1), Schedule(()), deadline=DEADLINE)
    assert names(outcome.invariants) == ["no step is lost"]


@pytest.mark.not_in_gate
def test_a_job_that_is_late_is_ended_and_leaves_nothing(job):
    schedule = Schedule((Fault("stop", "chief"),))
    late = dataclasses.replace(job(1000), grace_period=0.5)
    outcome = chaos.run(late, schedule, deadline=3)
    assert names(outcome.invariants) == ["it ends"]
    assert outcome.ending.status is None


def test_a_job_that_may_not_recover_says_why(job):
    schedule = Schedule((Fault("kill", "ps:0", 1),))
    outcome = chaos.run(job(1000, max_restarts=0), schedule, deadline=DEADLINE)
    assert names(outcome.invariants) == ["it ends"]
    assert outcome.ending.reason == "ps:0 was killed by SIGKILL"


def test_checks_of_the_callers_count(job):
    broken = chaos.Invariant("the model is right", False, "it is not")
    outcome = chaos.run(
        job(1), Schedule(()), checks=[lambda: broken], deadline=DEADLINE
    )
    assert names(outcome.invariants) == ["the model is right"]


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        (
            Fault("kill", "ps:7"),
            {},
            "no ps:7 in this job: choose one of chief, ps:0, worker:0",
        ),
        (Fault("partition", "ps:0"), {"network": "private"}, "received 'private'"),
        (Fault("corrupt", "chief"), {}, "--checkpoint_dir"),
    ],
)
def test_a_schedule_that_cannot_be_had(job, fault, options, message):
    with pytest.raises(FaultError, match=message):
        chaos.run(job(1, **options), Schedule((fault,)))


def test_a_checkpoint_dir_that_cannot_be_written(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    with raises(UsageError, "train.py"):
        chaos.main(["chaos", f"--checkpoint_dir={script}/kept", str(script)])


def test_a_large_file_system_is_not_filled(job, tmp_path):
    if os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize <= 1 << 30:
        pytest.skip("that of the temporary directory is small")
    schedule = Schedule((Fault("full_disk", "chief", seconds=1.0),))
    with raises(FaultError, "tmpfs"):
        chaos.run(job(1), schedule, checkpoint_dir=str(tmp_path))
    assert not (tmp_path / ".ballast").exists()
    with raises(FaultError, "tmpfs"):
        chaos.run(job(1), schedule, checkpoint_dir=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_docs_use_names_that_there_are():
    page = Path(__file__).resolve().parents[2] / "docs" / "chaos.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    modules = {"chaos": chaos, "launch": launch}
    for node in (each for block in blocks for each in ast.walk(ast.parse(block))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), node.attr
        if isinstance(node, ast.ImportFrom) and node.module == "launch.chaos":
            assert {alias.name for alias in node.names} <= set(chaos.__all__)
    schedule = re.search(r"^schedule = .*$", blocks[-1], re.M)[0]
    exec(schedule, vars(chaos), names := {})
    assert names["schedule"].kinds == {"stop"}
