"""Training whose tasks are killed and stopped, one after the other."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.deadline import DEADLINE, PROGRAM_DEADLINE, STARTUP_FLAG
from ..support.jobs import ROOT, launch

PROGRAMS = Path(__file__).parents[1] / "programs"
PROGRAM = PROGRAMS / "train_and_kill.py"
EPOCHS, STEPS = 3, 400
IDS_OF_A_BATCH = 256  # As tests/programs/growing_and_kill.py has them.


@pytest.mark.in_gate("killed")
@pytest.mark.cluster
@pytest.mark.parametrize("stopped", [[], ["worker:1"]], ids=["killed", "stopped_too"])
def test_tasks_are_lost_and_training_ends_as_planned(stopped, tmp_path):
    signals = ["SIGKILL:worker:0", *(f"SIGSTOP:{task}" for task in stopped)]
    (tmp_path / "victims").write_text(" ".join([*signals, "SIGKILL:ps:1"]))
    done = launch(
        *("--checkpoint_dir=checkpoints", "--stall_timeout=20"),
        *(PROGRAM, str(EPOCHS), str(STEPS)),
        cwd=tmp_path,
    )
    said = [line.partition("] ")[2].strip() for line in done.stdout.splitlines()]
    assert "the new worker:0 has run a step" in said
    assert any(line.startswith("tfdist: fit continues from") for line in said)
    assert f"epochs {list(range(EPOCHS))}" in said
    assert "workers True" in said
    [iterations] = [int(w.split()[1]) for w in said if w.startswith("iterations")]
    assert iterations >= EPOCHS * STEPS
    assert "worker:0 was killed by SIGKILL: restarting worker:0" in done.stderr
    for task in stopped:
        # The launcher sees that it is stopped, and the chief that it does not answer.
        seen_by = (f"{task} has been stopped", f"chief waits for {task}: killing it")
        assert any(words in done.stderr for words in seen_by)
        assert f"{task} was killed by SIGKILL: restarting {task}" in done.stderr
    assert (
        "recovered: ps:1 was killed by SIGKILL; restarted chief, ps:0, ps:1"
        in done.stderr
    )
    [log] = tmp_path.glob("logs/*/fork-server.log")
    notes = re.findall(r"launch: (\S+) is process \d+, (forked)?", log.read_text())
    tasks = [name for name, _ in notes]
    assert notes == [(name, "forked") for name in tasks]
    # Each is started once, and again with what was lost.
    assert tasks.count("chief") == tasks.count("ps:0") == tasks.count("ps:1") >= 2
    assert tasks.count("worker:0") == tasks.count("worker:1") + (not stopped) >= 2


@pytest.mark.cluster
def test_sigterm_saves_the_steps_that_ran_and_no_step_runs_twice(tmp_path):
    # A checkpoint is the same under every policy of consistency.
    def start(consistency):
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "launch.local", "--checkpoint_dir=checkpoints"),
                *(STARTUP_FLAG, f"--grace_period={DEADLINE:g}"),
                *(PROGRAMS / "train_slowly.py", "2", "300"),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
                "TFDIST_CONSISTENCY": consistency,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    (tmp_path / "slow").touch()
    with start("bounded:1") as process:
        for line in process.stdout:
            if "step 50" in line:
                break
        process.terminate()
        shown, errors = process.communicate(timeout=PROGRAM_DEADLINE)
    assert process.returncode == 128 + signal.SIGTERM, shown + errors
    saved = re.search(r"SIGTERM: saving fit at epoch 1 of 2, step (\d+)", shown)
    assert saved, shown + errors
    assert 50 <= int(saved[1]) < 300
    (tmp_path / "slow").unlink()
    with start("asynchronous") as process:
        shown, errors = process.communicate(timeout=PROGRAM_DEADLINE)
    assert process.returncode == 0, shown + errors
    assert re.search(rf"fit continues from \S+: epoch 1 of 2, step {saved[1]}\n", shown)
    assert "iterations 600\n" in shown


@pytest.mark.cluster
def test_a_killed_worker_holds_nobody_up_at_the_bound(tmp_path):
    bound, steps, kills = 1, 2000, 4
    done = launch(
        *("--num_ps=2", "--max_restarts=9", PROGRAMS / "bounded_and_kill.py"),
        *map(str, (bound, steps, kills)),
        cwd=tmp_path,
    )
    said = dict(re.findall(r"(kills|staleness|steps|iterations) (\d+)\n", done.stdout))
    assert int(said["kills"]) == kills
    assert int(said["staleness"]) <= bound
    # A step that was cut off while it wrote is written again by another worker.
    assert steps <= int(said["iterations"]) <= steps + kills
    assert steps <= int(said["steps"]) <= steps + kills
    assert "stalled" not in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("policy", "victims", "most_beyond"),
    [
        # Another worker computes the batch again, of which a part may have been added.
        ("asynchronous", ["worker:0", "worker:1", "worker:2"], 3 * IDS_OF_A_BATCH),
        # A checkpoint has every step before its position, and no other.
        ("asynchronous", ["ps:1", "chief:0"], 0),
        # Of a gradient of a round, no part counts.
        ("synchronous", ["worker:0", "ps:1", "chief:0"], 0),
    ],
    ids=["workers", "ps_and_chief", "rounds"],
)
def test_no_row_of_a_growing_table_is_lost_or_doubled(
    policy, victims, most_beyond, tmp_path
):
    (tmp_path / "victims").write_text(" ".join(victims))
    done = launch(
        *("--checkpoint_dir=checkpoints", "--num_ps=2", "--num_workers=4"),
        *("--max_restarts=9", PROGRAMS / "growing_and_kill.py"),
        cwd=tmp_path,
        TFDIST_CONSISTENCY=policy,
    )
    assert (tmp_path / "victims").read_text() == ""
    for victim in victims:
        name = victim.removesuffix(":0") if "chief" in victim else victim
        assert f"{name} was killed by SIGKILL: restarting" in done.stderr
    said = dict(re.findall(r"(\w+) (-?[\d.]+)\n", done.stdout))
    of = {name: float(number) for name, number in said.items()}
    assert of["size"] == of["exported"] == of["numbers"] == of["planned"]
    assert of["least"] == 0
    assert 0 <= of["beyond"] <= most_beyond


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("strategy", "victim", "program"),
    [
        ("MultiWorkerMirroredStrategy", "worker:1", "every_task"),
        ("RingStrategy", "chief:0", "coordinator"),
    ],
)
def test_without_ps_all_start_again_and_go_on_at_their_step(
    strategy, victim, program, tmp_path
):
    def train(victim):
        done = launch(
            *("--checkpoint_dir=kept", "--num_ps=0", f"--program={program}"),
            *("--chatty", PROGRAMS / "kept_workers.py", strategy, victim),
            cwd=tmp_path,
        )
        said = [line.partition("] ")[2].strip() for line in done.stdout.splitlines()]
        results = {line for line in said if line.startswith("iterations ")}
        assert len(results) == 1
        begun = [line for line in said if line.startswith("begins at ")]
        return [float(each) for each in results.pop().split()[1:]], begun, done.stderr

    found, begun, errors = train(victim)
    assert re.search("was killed by SIGKILL; restarted .*worker:0, worker:1", errors)
    first, *_, last = begun
    assert first == "begins at 0 0"
    assert last in {
        f"begins at {e} {s}" for e, s in [(0, 9), *((1, s) for s in range(7))]
    }
    (tmp_path / "kept").rename(tmp_path / "kept_before")
    expected, begun, _ = train("nobody")
    assert set(begun) == {first}
    assert found == pytest.approx(expected, rel=1e-5)
