"""Signals to a local job, and what they leave behind: nothing."""

import os
import signal
import time

import psutil
import pytest

from ..launch_programs.launcher import DEADLINE, PROGRAMS, SLEEP, marked, wait_for

SAVES_ON_INTERRUPT = """
    import signal, sys, time
    def save(signum, frame):
        print("saved after", signum, flush=True)
        sys.exit(5)
    signal.signal(signal.SIGINT, save)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    time.sleep(600)
"""


IGNORES = f"import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; {SLEEP}"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_lets_the_chief_save_its_work(launcher, signum):
    process = launcher.start(launcher.script(SAVES_ON_INTERRUPT))
    launcher.wait_for_log("chief")
    process.send_signal(signum)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 5
    assert f"saved after {signum}" in output
    assert f"{signum.name}: forwarded to chief, with 10 s to end" in errors


def test_ctrl_c_reaches_the_chief_once_and_the_servers_not_at_all(launcher):
    script = launcher.script(
        """
        import signal, sys, time
        received = []
        signal.signal(signal.SIGINT, lambda *_: received.append("SIGINT"))
        print("ready", flush=True)
        while not received:
            time.sleep(0.1)
        time.sleep(1)
        print(received)
        """
    )
    process = launcher.start(script, start_new_session=True)
    launcher.wait_for_log("chief")
    os.killpg(process.pid, signal.SIGINT)  # As the terminal does.
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert "[chief]    ['SIGINT']" in output
    assert errors.count("ended by the launcher") == 4


def test_many_signals_are_like_two(launcher):
    process = launcher.start("--grace_period=600", launcher.script(IGNORES))
    launcher.wait_for_log("chief")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_second_signal_kills_at_once(launcher):
    process = launcher.start("--grace_period=600", launcher.script(IGNORES))
    launcher.wait_for_log("chief")
    process.send_signal(signal.SIGINT)
    while "forwarded to" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "chief     killed by the launcher     137" in errors


def test_a_signal_that_reaches_the_supervisor_too_counts_once(launcher):
    script = launcher.script(
        """
        import signal, sys, time
        def save(*_):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1)
            sys.exit(5)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    process = launcher.start(script)
    launcher.wait_for_log("chief")
    (supervisor,) = psutil.Process(process.pid).children()
    for each in (supervisor, process):
        each.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 5


def test_chief_that_does_not_end_is_killed_after_the_grace_period(launcher):
    process = launcher.start("--grace_period=0.5", launcher.script(IGNORES))
    launcher.wait_for_log("chief")
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert "chief did not end within 0.5 s: killing" in errors


def test_signal_during_the_start_ends_the_servers(launcher):
    flags = ["--startup_timeout=600", launcher.script(SLEEP)]
    process = launcher.start(*flags, SILENT_SERVER="ps:0")
    launcher.wait_for_log("ps-0", b"hello")
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert "the job was ended during startup" in errors
    assert "chief     not started" in errors


def test_descendants_that_hide_are_gone_when_the_chief_ends(launcher):
    status, _, _ = launcher.run(str(PROGRAMS / "orphans.py"), launcher.mark, "0.5")
    assert status == 0
    assert marked(launcher.mark) == []


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_nothing_is_left_when_the_launcher_is_killed(launcher, victim):
    process = launcher.start(str(PROGRAMS / "orphans.py"), launcher.mark, "600")
    launcher.wait_for_log("chief")
    # launcher, supervisor, 4 servers, chief, and its 4 children
    wait_for(lambda: len(marked(launcher.mark)) == 11, "all processes")
    supervisor, *_ = psutil.Process(process.pid).children()
    os.kill(process.pid if victim == "launcher" else supervisor.pid, signal.SIGKILL)
    launcher.wait_until_nothing_is_left()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == (-9 if victim == "launcher" else 137)
    assert "Traceback" not in errors


def test_tasks_die_even_when_launcher_and_supervisor_are_killed_together(launcher):
    process = launcher.start(launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    supervisor, *_ = psutil.Process(process.pid).children()
    for pid in (process.pid, supervisor.pid):
        os.kill(pid, signal.SIGSTOP)  # Neither can clean up after the other.
    for pid in (supervisor.pid, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE)
    launcher.wait_until_nothing_is_left()


def test_nothing_is_left_when_the_launcher_is_killed_while_nobody_reads(launcher):
    script = launcher.script("while True: print('x' * 1000)")
    process = launcher.start(script)
    launcher.wait_for_log("chief", b"x")
    time.sleep(1)  # Time to fill the pipe, and for the supervisor to wait on it.
    process.kill()
    launcher.wait_until_nothing_is_left()
    process.communicate(timeout=DEADLINE)
