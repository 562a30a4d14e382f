"""What `launch.local` restarts: real processes, with a stand-in for the server."""

import os
import re
import signal
from pathlib import Path

import pytest

from ..launch_programs.launcher import Launcher, small_cgroup, wait_for
from ..support.deadline import DEADLINE

PROGRAMS = Path(__file__).parents[1] / "programs"
LIVES = str(PROGRAMS / "lives.py")


@pytest.fixture
def launcher(tmp_path):
    (tmp_path / "lives").mkdir()
    with Launcher(tmp_path) as launcher:
        yield launcher


def alive_after(launcher, name, life):
    """Wait until the program is in its n-th life and a task runs."""
    launcher.wait_for_log("chief", f"life {life}".encode())
    return wait_for(lambda: launcher.tasks().get(name) and launcher.tasks(), name)


def finish(process):
    output, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, output, errors


def test_a_worker_is_started_again_alone(launcher):
    process = launcher.start(LIVES, "1")
    before = alive_after(launcher, "worker:1", 0)
    os.kill(before["worker:1"], signal.SIGKILL)
    after = wait_for(
        lambda: (
            (now := launcher.tasks()).get("worker:1", before["worker:1"])
            != before["worker:1"]
            and now
        ),
        "new worker:1",
    )
    same = {name for name in before if before[name] == after.get(name)}
    assert same == {"chief:0", "ps:0", "ps:1", "worker:0"}
    wait_for(lambda: launcher.log("worker-1").count(b"hello") == 2, "second hello")
    process.send_signal(signal.SIGTERM)
    _, _, errors = finish(process)
    assert "worker:1 was killed by SIGKILL: restarting worker:1" in errors
    assert "worker:1  ended by the launcher, started 2 times" in errors


@pytest.mark.parametrize("lost", ["ps:1", "chief:0"])
def test_a_ps_or_the_chief_starts_the_program_and_every_ps_again(launcher, lost):
    process = launcher.start(LIVES, "1")
    before = alive_after(launcher, lost, 0)
    os.kill(before[lost], signal.SIGKILL)
    status, output, errors = finish(process)
    assert status == 0
    assert "life 1" in output
    name = "chief" if lost == "chief:0" else lost
    assert f"{name} was killed by SIGKILL: restarting chief, ps:0, ps:1" in errors
    assert (
        f"recovered: {name} was killed by SIGKILL; restarted chief, ps:0, ps:1"
        in errors
    )
    rows = {line.split()[1]: line for line in errors.splitlines()}
    assert "finished, started 2 times" in rows["chief"]
    assert "times" not in rows["worker:0"]
    # The log has both lives.
    assert b"life 0" in launcher.log("chief")


@pytest.mark.parametrize("is_chatty", [False, True])
def test_the_last_words_of_a_program_that_starts_again_are_in_its_log(
    launcher, is_chatty
):
    script = launcher.script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("a ps is lost"))
        if os.path.exists("again"):
            print("life 1")
        else:
            open("again", "w").close()
            print("life 0", flush=True)
            time.sleep(600)
        """
    )
    flags = ["--num_ps=1", "--num_workers=1", *["--chatty"] * is_chatty]
    process = launcher.start(*flags, script)
    os.kill(alive_after(launcher, "ps:0", 0)["ps:0"], signal.SIGKILL)
    status, output, _ = finish(process)
    assert status == 0
    assert "life 1" in output
    assert ("a ps is lost" in output) == is_chatty
    assert b"a ps is lost" in launcher.log("chief")


def test_a_program_that_fails_by_itself_is_not_started_again(launcher):
    status, output, errors = launcher.run(
        launcher.script("print('tried', flush=True); raise SystemExit(3)")
    )
    assert status == 3
    assert output.count("tried") == 1
    assert "chief exited with status 3" in errors


def test_a_program_may_ask_to_be_started_again(launcher):
    script = launcher.script(
        """
        import os, sys
        lives = len(os.listdir("lives"))
        open(f"lives/{lives}", "w")
        sys.exit(0 if lives else 75)
        """
    )
    status, _, errors = launcher.run(script)
    assert status == 0
    assert (
        "chief exited with status 75 to be restarted: restarting chief, ps:0, ps:1"
        in errors
    )


def test_restarts_are_bounded(launcher):
    script = launcher.script("import os; os.kill(os.getpid(), 9)")
    status, _, errors = launcher.run("--max_restarts=2", script)
    assert status == 137
    assert errors.count("restarting chief, ps:0, ps:1") == 2
    assert "not restarting, since the job has recovered 2 times within 600 s" in errors
    assert "out of memory" not in errors


@pytest.fixture
def small_group():
    with small_cgroup() as command:
        yield command


def test_a_task_that_twice_takes_all_memory_is_not_started_again(launcher, small_group):
    launcher.prefix = ("sh", "-c", f'{small_group}; exec "$@"', "sh")
    script = launcher.script("print('begins', flush=True); bytearray(2**30)")
    status, output, errors = launcher.run("--num_ps=1", "--num_workers=1", script)
    assert status == 137
    assert output.count("begins") == 2
    end = "chief was killed by SIGKILL, probably out of memory: it used "
    end += r"0\.\d( of 0\.4)? GB( \(the kernel killed a process of its cgroup\))?"
    assert re.search(f"{end}: restarting chief, ps:0\n", errors)
    assert re.search(f"{end}; not restarting, since chief died so twice", errors)


def test_ctrl_c_while_a_start_is_put_off(launcher):
    script = launcher.script("import os; os.kill(os.getpid(), 9)")
    process = launcher.start("--max_restarts=9", script)
    while "ps:1 in 2 s" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, _, errors = finish(process)
    assert status == 130
    assert "SIGINT: not restarting anything" in errors


def test_what_a_lost_program_left_behind_is_gone_before_the_next(launcher):
    status, output, _ = launcher.run(str(PROGRAMS / "leaves_child.py"))
    assert status == 0
    assert "child False" in output


def test_the_directory_of_checkpoints_is_told_to_the_program_alone(launcher):
    script = launcher.script("import os; print(os.environ['TFDIST_CHECKPOINT_DIR'])")
    status, output, _ = launcher.run("--checkpoint_dir=kept", script)
    assert (status, str(launcher.directory / "kept") in output) == (0, True)
    _, plan, _ = launcher.run("--checkpoint_dir=kept", "--dry_run", script)
    assert plan.count("TFDIST_CHECKPOINT_DIR") == 1


def test_a_task_that_stays_stopped_is_killed_and_restarted(launcher):
    process = launcher.start("--stall_timeout=0.5", LIVES, "1")
    chief = alive_after(launcher, "chief:0", 0)["chief:0"]
    os.kill(chief, signal.SIGSTOP)
    status, output, errors = finish(process)
    assert status == 0
    assert "life 1" in output
    assert "chief has been stopped (SIGSTOP) for 0.5 s (--stall_timeout)" in errors
    assert "chief was killed by SIGKILL: restarting chief, ps:0, ps:1" in errors


def test_a_task_that_is_waited_for_is_started_again(launcher):
    script = launcher.script(
        """
        import json, os, time
        report = {"event": "stalled", "tasks": ["worker:1"], "why": "it sleeps"}
        os.write(int(os.environ["LAUNCH_REPORT_FD"]), json.dumps(report).encode() + b"\\n")
        print("told", flush=True)
        time.sleep(600)
        """
    )
    process = launcher.start(script)
    wait_for(lambda: launcher.log("worker-1").count(b"hello") == 2, "second hello")
    process.send_signal(signal.SIGTERM)
    _, _, errors = finish(process)
    assert "chief is waiting for worker:1: killing it" in errors


def test_without_restarts_no_task_has_a_report_pipe(launcher):
    script = launcher.script("import os; print('LAUNCH_REPORT_FD' in os.environ)")
    _, output, _ = launcher.run("--max_restarts=0", script)
    assert "[chief]    False" in output
