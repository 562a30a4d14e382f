"""`--min_workers`: what the launcher starts, gives up, and refuses."""

import os
import re
import signal

import pytest

from launch.job.plan import PlanError, Program
from launch.loopback.cluster import make_job
from tf_config import Cluster, contract
from tfdist.cluster.settings import job_settings

from ..launch_programs.launcher import SLEEP, wait_for
from ..recovery.test_recovery_launch import finish, pids

CLUSTER = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3,a:4,a:5")
FOUR = ("--num_ps=1", "--num_workers=4")


def test_the_script_alone_is_told():
    job = make_job(CLUSTER, Program("train.py"), min_workers=2)
    told = {plan.name: plan.env.get(contract.MIN_WORKERS) for plan in job.plans}
    assert told.pop("chief") == "2"
    assert set(told.values()) == {None}
    assert job.needed_workers == 2
    assert make_job(CLUSTER, Program("train.py")).needed_workers == 3


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_number_of_workers_that_there_cannot_be(number):
    with pytest.raises(PlanError):
        make_job(CLUSTER, Program("train.py"), min_workers=number)


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [
        (CLUSTER, "every_task"),
        (Cluster.from_hosts(chief="a:1", worker="a:2,a:3"), "coordinator"),
    ],
)
def test_programs_that_need_all_their_workers(cluster, kind):
    with pytest.raises(PlanError):
        make_job(cluster, Program("train.py"), kind, min_workers=1)


def test_each_worker_is_told_so_that_a_strategy_can_refuse_it(monkeypatch):
    job = make_job(
        Cluster.from_hosts(worker="a:1,a:2"), Program("train.py"), min_workers=1
    )
    assert job.needed_workers == 1
    for plan in job.plans:
        monkeypatch.setenv(contract.MIN_WORKERS, plan.env[contract.MIN_WORKERS])
        settings = job_settings("MultiWorkerMirroredStrategy", {})
        with pytest.raises(ValueError, match="MirroredStrategy needs all of its 2"):
            settings.need_all_workers(2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--min_workers=0"], r"--min_workers is a positive integer; received '0'"),
        (["--min_workers=-2"], r"--min_workers is a positive integer; received '-2'"),
        (["--min_workers=two"], "--min_workers is a positive integer; received 'two'"),
        (
            ["--min_workers=5"],
            "--min_workers=5 is more than --num_workers=4: choose 1 to 4",
        ),
        (["--min_workers=1", "--program=every_task"], "only the chief runs"),
    ],
)
def test_bad_values_are_refused(launcher, flags, words):
    status, _, errors = launcher.run(*FOUR, *flags, launcher.script("pass"))
    assert status == 2
    assert re.search(words, errors), errors


def test_the_program_starts_without_workers_that_are_late(launcher):
    script = launcher.script("print('training', flush=True)")
    status, output, errors = launcher.run(
        *FOUR, "--min_workers=3", script, SILENT_SERVER="worker:2"
    )
    assert status == 0, errors
    assert "training" in output
    assert re.search(r"not waiting for .*worker:2.* \(--min_workers=3\)", errors)


def test_too_few_workers_at_the_start(launcher):
    status, _, errors = launcher.run(
        *("--num_ps=1", "--num_workers=2", "--min_workers=2", "--startup_timeout=5"),
        launcher.script("pass"),
        SILENT_SERVER="worker:1",
    )
    assert status == 1
    assert "worker:1 did not listen on" in errors
    assert "1 of 2 workers listen, and 2 are needed (--min_workers)" in errors


def test_a_worker_that_cannot_be_started_is_given_up(launcher):
    script = launcher.script(SLEEP)
    process = launcher.start(
        *(*FOUR, "--min_workers=3", "--max_restarts=1", script),
        DYING_SERVER="worker:1",
    )
    launcher.wait_for_log("chief")
    wait_for(lambda: launcher.log("worker-1").count(b"hello") == 2, "second hello")
    # Its restarts are not counted: another worker still has one.
    before = wait_for(
        lambda: len(now := pids(launcher)) == 5 and "worker:1" not in now and now,
        "end of worker:1",
    )
    launcher.wait_for_log("worker-3", b"hello")  # It may have listened before.
    os.kill(before["worker:3"], signal.SIGKILL)
    wait_for(lambda: launcher.log("worker-3").count(b"hello") == 2, "second hello")
    process.send_signal(signal.SIGTERM)
    _, _, errors = finish(process)
    assert (
        "worker:1 exited with status 7; not restarting it (--max_restarts): giving up "
        "worker:1; the job goes on with 3 of 4 workers (--min_workers=3)" in errors
    )
    assert "worker:3 was killed by SIGKILL: restarting worker:3" in errors


@pytest.mark.parametrize("restarts", [0, 1])
def test_below_the_minimum_the_job_fails_and_says_so(launcher, restarts):
    process = launcher.start(
        *("--num_ps=1", "--num_workers=3", "--min_workers=2"),
        *(f"--max_restarts={restarts}", "--restart_window=600"),
        launcher.script(SLEEP),
    )
    launcher.wait_for_log("chief")
    for worker in ("worker:2", "worker:1"):
        for life in range(restarts + 1):
            log = worker.replace(":", "-")
            wait_for(
                lambda log=log, n=life + 1: launcher.log(log).count(b"hello") == n,
                "start",
            )
            os.kill(wait_for(lambda w=worker: pids(launcher).get(w), worker), 9)
    status, _, errors = finish(process)
    assert status == 137
    # Whichever death is seen first.
    [given_up] = re.findall(r"giving up (\S+); the job goes on with 2 of 3", errors)
    [other] = {"worker:1", "worker:2"} - {given_up}
    assert f"{other} was killed by SIGKILL" in errors
    assert "1 of 3 workers would be left (--min_workers=2)" in errors


def of_each(**programs):
    """A script that does something else in each task."""
    chosen = {name.replace("_", ":"): code for name, code in programs.items()}
    return (
        "import json, os, signal, time\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "name = f\"{task['type']}:{task['index']}\"\n"
        "print('hello', flush=True)\n"
        f"exec({chosen!r}.get(name, 'time.sleep(1)'))"
    )


@pytest.mark.parametrize(
    ("lost", "end", "words"),
    [
        (
            "worker:0",
            "os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by SIGKILL",
        ),
        ("worker:2", "raise SystemExit(3)", "exited with status 3"),
    ],
)
def test_without_ps_the_others_go_on(launcher, lost, end, words):
    script = of_each(**{lost.replace(":", "_"): end})
    status, _, errors = launcher.run(
        *("--num_ps=0", "--num_workers=3", "--min_workers=2", "--max_restarts=0"),
        launcher.script(script),
    )
    assert status == 0, errors
    assert (
        f"{lost} {words}: giving up {lost}; the job goes on with 2 of 3 workers "
        "(--min_workers=2)" in errors
    )
    assert len(re.findall(r"finished +0 ", errors)) == 2


KILLED_ONCE = """
import pathlib
again = pathlib.Path("again")
if not again.exists():
    again.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
UNTIL_IT_IS_BACK = """
os.symlink(f"/proc/{os.getpid()}", name)
while not os.path.exists("back"):
    time.sleep(0.01)
"""
# The link leads nowhere once a process has ended and the supervisor knows its status.
AFTER_THE_OTHERS = """
open("back", "w")
for other in ("worker:0", "worker:1"):
    while not os.path.islink(other) or os.path.exists(other):
        time.sleep(0.01)
raise SystemExit(3)
"""


@pytest.mark.parametrize("lost", ["worker:0", "worker:2"])
def test_without_ps_a_killed_worker_is_started_again(launcher, lost):
    waits = "while not os.path.exists('back'): time.sleep(0.01)"
    programs = dict.fromkeys(("worker_0", "worker_1", "worker_2"), waits)
    programs[lost.replace(":", "_")] = f"{KILLED_ONCE}\nopen('back', 'w')"
    script = of_each(**programs)
    status, _, errors = launcher.run(
        *("--num_ps=0", "--num_workers=3", "--min_workers=2"), launcher.script(script)
    )
    assert status == 0, errors
    assert f"{lost} was killed by SIGKILL: restarting {lost}" in errors
    assert "giving up" not in errors
    assert launcher.log(lost.replace(":", "-")).count(b"hello") == 2


def test_without_ps_a_worker_that_comes_back_too_late_does_not_fail_the_job(launcher):
    script = of_each(
        worker_0=UNTIL_IT_IS_BACK,
        worker_1=UNTIL_IT_IS_BACK,
        worker_2=f"{KILLED_ONCE}\n{AFTER_THE_OTHERS}",
    )
    status, _, errors = launcher.run(
        *("--num_ps=0", "--num_workers=3", "--min_workers=2"), launcher.script(script)
    )
    assert status == 0, errors
    assert "worker:2 exited with status 3: giving up worker:2" in errors
