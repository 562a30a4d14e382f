"""Synchronous training on parameter servers survives the loss of a task."""

from pathlib import Path

import pytest

from ..support.jobs import launch

PROGRAMS = Path(__file__).parents[1] / "programs"

pytestmark = pytest.mark.cluster


def test_worker_killed_for_good(run_program):
    """The other computes its batches, each of them counts once, and nobody waits."""
    result = run_program("lost_worker_of_a_round.py")
    assert "as one process" in result.stdout, result.stderr[-3000:]


@pytest.mark.parametrize("policy", ["asynchronous", "rounds"])
def test_worker_killed_before_the_chief_has_its_result(run_program, policy):
    """Its step runs again elsewhere; the chief reads no result from a lost worker.

    The worker that is left gets messages with batches of several rounds.
    """
    result = run_program("lost_result.py", policy)
    assert "killed" in result.stdout, result.stderr[-3000:]
    assert "trained on" in result.stdout, result.stderr[-3000:]


@pytest.mark.in_part("SIGKILL-2")
@pytest.mark.parametrize(("how", "lost"), [("SIGKILL", "2"), ("SIGSTOP", "1")])
def test_rounds_go_on_without_workers(run_program, how, lost):
    """Each gradient counts on all ps or on none, and none is stale.

    One of three workers is a backup. If two are killed, the one that is left computes all
    gradients of a round, one after the other.
    """
    result = run_program("lost_backup_of_a_round.py", how, "3", "1", lost)
    assert "on all ps or on none" in result.stdout, result.stderr[-3000:]


def test_chief_is_restored_from_a_backup(tmp_path):
    """Training continues at its epoch, with the weights of an uninterrupted run."""
    cluster = ("--num_ps=2", "--num_workers=2")
    done = launch(*cluster, PROGRAMS / "restored_rounds.py", cwd=tmp_path)
    epochs = [
        line.split()[-1] for line in done.stdout.splitlines() if " epoch " in line
    ]
    assert epochs == ["0", "1", "1", "2"]
    assert "as one process" in done.stdout


@pytest.mark.in_part("synchronous:1")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["synchronous", "synchronous:1"])
def test_every_task_is_lost_once(tmp_path, policy):
    """Workers come back; after a ps or the chief, fit continues from a checkpoint."""
    victims = "SIGKILL:worker:0 SIGSTOP:worker:1 SIGKILL:ps:1 SIGKILL:chief:0"
    (tmp_path / "victims").write_text(victims)
    done = launch(
        *("--checkpoint_dir=checkpoints", "--stall_timeout=20"),
        *(PROGRAMS / "train_and_kill.py", "3", "400"),
        cwd=tmp_path,
        TFDIST_CONSISTENCY=policy,
    )
    assert (tmp_path / "victims").read_text() == ""
    assert "the new worker:0 has run a step" in done.stdout
    assert "tfdist: fit continues from" in done.stdout
    assert "epochs [0, 1, 2]" in done.stdout
    assert "ps:1 was killed by SIGKILL: restarting chief" in done.stderr
    assert "chief was killed by SIGKILL: restarting chief" in done.stderr
