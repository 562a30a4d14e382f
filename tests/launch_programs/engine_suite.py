"""What a job does on every engine: tests that those of each engine inherit.

Their fixture `launcher` is an `EngineLauncher` of that engine, which has what differs.
"""

import re
import signal

import psutil
import pytest

from .engine_launcher import EXAMPLE
from .launcher import DEADLINE, wait_for

ARGUMENTS = [
    *("a b", "$(HOME)", "$$(id)", "\n- x: y", "\n#SBATCH --partition=no"),
    *("\r\n'\"\\", "--", "%j", "1e3", "é"),
]
# With a child that only looking for it would find.
FAMILY = """
    import subprocess, time
    subprocess.Popen(["setsid", "sleep", "600"])
    print("ready", flush=True)
    time.sleep(600)
"""


class EngineSuite:
    """Collected as a class of each file of tests."""

    @pytest.mark.timeout(900)
    def test_mnist_trains_while_a_worker_a_ps_and_the_chief_are_killed(self, launcher):
        launcher.use_real_tfdist()
        process = launcher.start(
            *("--name=mine", "--checkpoint_dir=checkpoints", *launcher.patient),
            *(str(EXAMPLE), "--epochs=4", "--min_accuracy=0.95"),
        )
        launcher.wait_for_epoch(2, process)
        launcher.check_places()
        launcher.lose("worker:0")
        launcher.lose("ps:1")
        # There was no checkpoint yet, so the program starts from its first epoch.
        launcher.wait_for_epoch(1, process, times=2)
        launcher.lose("chief:0")
        expected = launcher.disturb(process)
        shown = launcher.finish(process)
        assert process.returncode == 0, shown
        assert re.search(expected, shown), shown
        assert float(re.search(r"Test accuracy: ([\d.]+)", shown)[1]) >= 0.95
        # Each once when it happens, and once in the summary.
        recovered = re.findall(r"recovered: (\S+) was .*at work", shown)
        assert recovered == 2 * ["worker:0", "ps:1", "chief"], shown

    def test_the_script_and_the_status_of_the_job(self, launcher):
        launcher.script("WORD = 'beside'", "beside.py")
        code = "import beside, os, sys; print(sys.argv[1:], beside.WORD, os.uname().nodename)"
        script = launcher.script(f"{code}; print(os.getcwd()); sys.exit(7)")
        flags = ("--name=mine", *launcher.small, script)
        status, output, errors = launcher.run(*flags, *ARGUMENTS)
        shown = output + errors
        assert status == 7, shown
        line = f"[chief]    {ARGUMENTS!r} beside {launcher.chief_host}\n"
        assert line in output
        is_shipped = f"[chief]    {launcher.directory}\n" not in output
        assert is_shipped == launcher.is_shipped
        assert "chief exited with status 7" in shown
        assert "restarting" not in shown
        told = launcher.jobs("status", "mine").stdout
        assert re.match(rf"mine on {launcher.engine} since \S+: ended with 7\n", told)
        assert launcher.jobs("logs", "mine", "ps:0").stdout == "hello from ps:0\n"
        follow = launcher.jobs("follow", "mine")
        assert follow.returncode == 7
        assert line in follow.stdout
        assert follow.stdout == output or not launcher.runs_elsewhere

    @pytest.mark.in_part("cancel", "SIGKILL")
    @pytest.mark.parametrize("how", ["cancel", "SIGTERM", "SIGKILL"])
    def test_nothing_is_left(self, launcher, how):
        if how == "cancel":
            nothing_is_left(launcher)
            return
        process = nothing_is_left(
            launcher, lambda it: it.send_signal(getattr(signal, how))
        )
        if how == "SIGTERM":
            assert process.returncode == 143

    def test_a_task_whose_connection_is_lost_starts_again(self, launcher):
        process = launcher.start("--name=mine", *launcher.small, launcher.waiting())
        launcher.wait_for_log("chief")
        before = launcher.tasks()
        task = launcher.cut()

        def has_recovered():
            now = launcher.tasks()
            return now.keys() == before.keys() and now != before

        wait_for(has_recovered, "recovery")
        launcher.over.touch()
        shown = launcher.finish(process)
        assert process.returncode == 0, shown
        assert re.search(rf"{task} was lost: .* restarting {task}", shown), shown


def nothing_is_left(launcher, end=None):
    """Starts a job and ends it, or cancels one that is detached; returns its process."""
    script = launcher.script(FAMILY)
    detached = [] if end else ["--detach"]
    process = launcher.start("--name=mine", *launcher.small, *detached, script)
    if detached:
        output, errors = process.communicate(timeout=2 * DEADLINE)
        assert (process.returncode, output) == (0, "mine\n"), errors
    launcher.wait_for_log("chief")
    launcher.check_running()
    assert ": running\n" in launcher.jobs("status", "mine").stdout
    again = launcher.run("--name=mine", script)
    assert again[0] == 2
    assert "a job named 'mine' is running" in again[2]
    if detached:
        assert launcher.jobs("cancel", "mine").stdout == "mine: ended with 143\n"
        assert launcher.is_gone()
        assert "ended with 143" in launcher.jobs("cancel", "mine").stdout
        follow = launcher.jobs("follow", "mine")
        assert follow.returncode == 143
        assert "SIGTERM: forwarded to chief" in follow.stdout
    else:
        end(process)
        process.communicate(timeout=2 * DEADLINE)
    launcher.wait_until_nothing_is_left()
    wait_for(lambda: "ended" in launcher.jobs("status", "mine").stdout, "end")
    return process


def kill_child(process, name, *, too=False):
    """Kills a process that the command has started, and with `too` itself before."""
    children = psutil.Process(process.pid).children()
    (child,) = [each for each in children if name in str(each.cmdline())]
    if too:
        process.kill()
    child.kill()
