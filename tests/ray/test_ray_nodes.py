"""`launch.ray` against a real Ray of three nodes on this machine."""

import re
import subprocess
import sys
import time

import psutil
import pytest

from ..launch_programs.engine_launcher import ELASTIC, EXAMPLE, PATIENCE, EngineLauncher
from ..launch_programs.launcher import DEADLINE, SLEEP, marked, wait_for
from .ray_nodes import CPUS, actors, needs_ray, ray_nodes

pytestmark = [*needs_ray, pytest.mark.cluster]

NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
SMALL = ("--num_ps=1", "--num_workers=1")


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes(NODES) as nodes:
        yield nodes


class RayLauncher(EngineLauncher):
    """Runs `python -m launch.ray`, with jobs of its own."""

    def __init__(self, directory, nodes):
        super().__init__(directory)
        self.nodes = nodes
        self.command = (
            *(sys.executable, "-m", "launch.ray", f"--address={nodes.address}"),
            *("--log_dir=logs", "--grace_period=5", "--env=TEST_MARK", "--timeout=60"),
            "--secure=off",  # The nodes are one machine: they share their loopback.
        )

    def where(self):
        """The node of each task."""
        return {task: self.nodes.of(pid) for task, pid in self.tasks().items()}

    def wait_until_nothing_is_left(self):
        super().wait_until_nothing_is_left()
        wait_for(self.nodes.is_empty, "end of the job for Ray")


@pytest.fixture
def launcher(tmp_path, nodes):
    with RayLauncher(tmp_path, nodes) as launcher:
        yield launcher
        launcher.wait_until_nothing_is_left()


@pytest.mark.timeout(900)
def test_mnist_trains_while_a_worker_a_ps_and_the_chief_are_killed(nodes, tmp_path):
    with RayLauncher(tmp_path, nodes) as launcher:
        launcher.use_real_tfdist()
        process = launcher.start(
            *("--checkpoint_dir=checkpoints", f"--startup_timeout={PATIENCE:g}"),
            *("--env=PYTHONPATH", "--env=TF_CPP_MIN_LOG_LEVEL=3", str(EXAMPLE)),
            *("--epochs=4", "--min_accuracy=0.95"),
        )
        launcher.wait_for_epoch(2, process)
        where = launcher.where()
        assert len(where) == 5
        assert where["ps:0"] != where["ps:1"]
        others = {node for task, node in where.items() if not task.startswith("ps")}
        assert len(others) == 1
        launcher.kill("worker:0")
        launcher.kill("ps:1")
        # There was no checkpoint yet, so the program starts from its first epoch.
        launcher.wait_for_epoch(1, process, times=2)
        launcher.kill("chief:0")
        shown, errors = process.communicate(timeout=PATIENCE)
        launcher.wait_until_nothing_is_left()
    assert process.returncode == 0, shown + errors
    assert float(re.search(r"Test accuracy: ([\d.]+)", shown)[1]) >= 0.95
    _, table = errors.split("  log\n")
    recovered = re.findall(r"recovered: (\S+) was killed by SIGKILL.*at work", table)
    assert recovered == ["worker:0", "ps:1", "chief"], errors


@pytest.mark.timeout(900)
def test_workers_come_when_there_is_a_node_and_one_is_given_up(nodes, tmp_path):
    new, enough = "127.0.0.5", tmp_path / "enough"
    with RayLauncher(tmp_path, nodes) as launcher:
        launcher.use_real_tfdist()
        process = launcher.start(
            # One task per node.
            *("--num_ps=1", "--cpus_per_task=3", "--min_workers=1", "--max_restarts=0"),
            *("--checkpoint_dir=checkpoints", f"--startup_timeout={PATIENCE:g}"),
            *(
                "--env=PYTHONPATH",
                "--env=TF_CPP_MIN_LOG_LEVEL=2",
                f"--work_dir={tmp_path}",
            ),
            *(str(ELASTIC), "arrays", "40", enough),
            stdout=subprocess.DEVNULL,
        )
        launcher.wait_for_steps("one")
        assert {*launcher.where()} == {"chief:0", "ps:0", "worker:0"}
        nodes.add(new)
        try:
            launcher.wait_for_steps("both", "move-1/chief")
            where = launcher.where()
            lost = next(
                task
                for task in ("worker:0", "worker:1")
                if where[task] != NODES[0]  # Ray's head is there.
            )
            nodes.kill(where[lost])
            # Ray takes a moment to say so; the program must not end before.
            log = f"move-1/{lost.replace(':', '-')}"
            launcher.wait_for_log(log, b"lost on Ray")
            launcher.wait_for_steps("one", "move-1/chief")
            enough.touch()
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            if new in nodes.names:
                nodes.kill(new)
            for name in set(NODES) - set(nodes.names):
                nodes.add(name)
        launcher.wait_until_nothing_is_left()
    assert process.returncode == 0, errors
    assert "asked for 2 workers, and Ray has room for 1: starting with these" in errors
    assert "Ray has room for 1 more of the workers: the program starts again" in errors
    assert f"giving up {lost}; the job goes on with 1 of 2 workers" in errors
    saved = re.findall(r"saving fit at (.*), and", launcher.log("chief").decode())
    assert len(saved) == 1
    said = launcher.log("move-1/chief").decode()
    assert re.search(rf"fit continues from \S+: {saved[0]}\n", said), said[:2000]
    counted = launcher.counted("move-1/chief")
    for name in ("iterations", "weight"):
        assert counted["asked for"] <= counted[name] <= counted["asked for"] + 80


def test_without_a_checkpoint_the_job_keeps_its_workers(launcher, nodes):
    over = launcher.directory / "over"
    process = launcher.start(
        *("--num_ps=1", "--num_workers=3", "--cpus_per_task=3", "--min_workers=1"),
        *(launcher.script(WAITING), str(over)),
    )
    launcher.wait_for_log("chief")
    assert {*launcher.where()} == {"chief:0", "ps:0", "worker:0"}
    # What it could not use, it does not ask for.
    assert nodes.groups() == 2
    over.touch()
    _, errors = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, errors
    assert "others can come only with --checkpoint_dir" in errors


def test_the_directory_is_shipped_and_the_status_comes_back(launcher):
    launcher.script("WORD = 'shipped'", "beside.py")
    script = launcher.script(
        """
        import beside, os, sys
        print(sys.argv[1:], beside.WORD, os.getcwd())
        sys.exit(7)
        """
    )
    args = ["a b", "$(id)", "\n", "'\"\\", "--"]
    status, output, errors = launcher.run(*SMALL, "--name=mine", script, *args)
    assert status == 7, output + errors
    shown = re.search(r"\[chief\]    (.*) shipped (.*)$", output, re.M)
    assert shown[1] == repr(args)
    assert shown[2] != str(launcher.directory)
    assert "chief exited with status 7" in errors
    assert "restarting" not in errors
    assert ": ended with 7\n" in launcher.jobs("status", "mine").stdout
    assert launcher.jobs("logs", "mine", "ps:0").stdout == "hello from ps:0\n"


# With a child that only looking for it would find.
FAMILY = """
    import subprocess, time
    subprocess.Popen(["setsid", "sleep", "600"])
    print("ready", flush=True)
    time.sleep(600)
"""
ENDINGS = ["cancel", "SIGTERM", "SIGKILL", "SIGKILL of both", "SIGKILL of the driver"]


@pytest.mark.in_part("cancel", "SIGKILL of both")
@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left(launcher, nodes, how):
    process = launcher.start(
        *("--name=mine", "--max_restarts=1", *SMALL), launcher.script(FAMILY)
    )
    launcher.wait_for_log("chief")
    assert len(launcher.tasks()) == len(actors()) == 3
    assert launcher.where().keys() == {"ps:0", "worker:0", "chief:0"}
    assert nodes.groups() == 2
    assert nodes.free() == CPUS * len(NODES) - 3
    status = launcher.jobs("status", "mine").stdout
    assert ": running\n" in status
    places = re.findall(r"^  (\S+)  on (\S+)  \S+:\d+  \S+\.log$", status, re.M)
    assert {f"{task}:0".replace(":0:0", ":0"): node for task, node in places} == (
        launcher.where()
    )
    children = psutil.Process(process.pid).children()
    supervisor, driver = (
        next(each for each in children if name in str(each.cmdline()))
        for name in ("supervisor", "ray_driver_process")
    )
    if how == "cancel":
        assert launcher.jobs("cancel", "mine").stdout == "mine: ended with 143\n"
        assert {*marked(launcher.mark)} <= {process.pid}  # The command itself ends.
        assert "ended with 143" in launcher.jobs("cancel", "mine").stdout
    elif how == "SIGTERM":
        process.terminate()
    elif how == "SIGKILL of the driver":
        driver.kill()
    else:
        process.kill()
        if how == "SIGKILL of both":
            supervisor.kill()
    process.communicate(timeout=2 * DEADLINE)
    launcher.wait_until_nothing_is_left()
    if how == "SIGTERM":
        assert process.returncode == 143
    elif how == "SIGKILL of the driver":
        assert process.returncode == 255
    wait_for(lambda: "ended" in launcher.jobs("status", "mine").stdout, "end")


WAITING = """
    import os, sys, time
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
"""


def test_a_dead_actor_is_a_lost_task(launcher):
    over = launcher.directory / "over"
    process = launcher.start(*SMALL, launcher.script(WAITING), str(over))
    launcher.wait_for_log("chief")
    before = launcher.tasks()
    victim, *_ = actors()
    victim.kill()

    def has_recovered():
        now = launcher.tasks()
        return len(now) == 3 and now != before and len(actors()) == 3

    wait_for(has_recovered, "recovery")
    over.touch()
    _, errors = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, errors
    assert " was lost: its host, or the connection to it, has failed: restart" in errors


LOST_NODES = [
    # There is a third node for the second ps.
    (["--num_ps=2"], "Ray has given it another, 127.0.0."),
    # There is no third node for the third ps, so two of them must share one.
    (["--num_ps=3", "--timeout=10"], "Ray has no other like it"),
]


@pytest.mark.in_part("flags0-Ray has given it another, 127.0.0.")
@pytest.mark.parametrize(("flags", "message"), LOST_NODES)
def test_a_node_that_dies_moves_its_tasks(launcher, nodes, flags, message):
    over = launcher.directory / "over"
    process = launcher.start(
        "--name=mine", "--num_workers=1", *flags, launcher.script(WAITING), str(over)
    )
    launcher.wait_for_log("chief")
    before = launcher.where()
    head, *others = NODES
    ps = [before[task] for task in before if task.startswith("ps")]
    assert len({*ps}) == len(ps)
    # Ray would find another place for the worker, which needs no node of its own.
    victim = min({*ps} & {*others}, key=lambda node: node == before["worker:0"])
    nodes.kill(victim)
    try:
        deadline = time.monotonic() + PATIENCE
        while b"ready" not in launcher.log("move-1/chief"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        after = launcher.where()
        assert set(after) == set(before)
        assert victim not in after.values()
        status = launcher.jobs("status", "mine").stdout
        assert f" {victim}" not in status
        assert status.count("/move-1/") == len(before)
        over.touch()
        _, errors = process.communicate(timeout=2 * DEADLINE)
        assert process.returncode == 0, errors
        assert f"has lost its node {victim}, and {message}" in errors
    finally:
        nodes.add(victim)


IMPOSSIBLE = [
    (["--num_ps=9", "--num_workers=9"], "it needs 19 CPU, and the cluster has 12"),
    (
        ["--cpus_per_task=3", "--num_workers=5", "--min_workers=2"],
        "it needs 15 CPU, and the cluster has 12",
    ),
    (["--gpus_per_worker=1", "--detach"], "it needs 2 GPU, and the cluster has 0"),
    (
        ["--cpus_per_task=5", "--num_ps=0", "--num_workers=1"],
        "a task needs 5 CPU, and no node has more than 4",
    ),
]


@pytest.mark.in_part("flags3-a task needs 5 CPU, and no node has more than 4")
@pytest.mark.parametrize(("flags", "message"), IMPOSSIBLE)
def test_what_the_cluster_does_not_have(launcher, flags, message):
    status, output, errors = launcher.run(
        *flags, "--timeout=2", launcher.script("print('never')")
    )
    assert (status, output) == (2, "")
    assert "within 2 s (--timeout)" in errors
    assert message in errors
    assert not (launcher.directory / "logs" / "chief.log").exists()
    launcher.wait_until_nothing_is_left()


@pytest.mark.in_part("SIGKILL")
@pytest.mark.parametrize("how", ["cancel", "SIGKILL"])
def test_a_job_that_waits_for_ray_can_be_ended(launcher, nodes, how):
    process = launcher.start("--name=mine", "--num_workers=99", launcher.script(SLEEP))
    wait_for(lambda: nodes.groups() == 2, "a request")
    waits = ": starting: Ray has not reserved what it needs yet\n"
    assert waits in launcher.jobs("status", "mine").stdout
    if how == "cancel":
        assert launcher.jobs("cancel", "mine").stdout == "mine: ended with 143\n"
    else:
        process.kill()
    process.communicate(timeout=DEADLINE)


def test_a_job_in_the_background(launcher):
    done = launcher.start("--detach", "--name=mine", *SMALL, launcher.script(SLEEP))
    output, errors = done.communicate(timeout=2 * DEADLINE)
    assert (done.returncode, output) == (0, "mine\n"), errors
    launcher.wait_for_log("chief")
    assert ": running\n" in launcher.jobs("status", "mine").stdout
    again = launcher.run("--name=mine", launcher.script(SLEEP))
    assert again[0] == 2
    assert "a job named 'mine' is running" in again[2]
    assert launcher.jobs("cancel", "mine").stdout == "mine: ended with 143\n"
    follow = launcher.jobs("follow", "mine")
    assert follow.returncode == 143
    assert "SIGTERM: forwarded to chief" in follow.stdout
