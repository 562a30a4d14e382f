"""`launch.ray` against a real Ray of three nodes on this machine."""

import re
import subprocess
import sys

import pytest

from ..launch_programs.engine_launcher import ELASTIC, PATIENCE, EngineLauncher
from ..launch_programs.engine_suite import EngineSuite, kill_child, nothing_is_left
from ..launch_programs.launcher import DEADLINE, SLEEP, wait_for
from .ray_nodes import CPUS, actors, needs_ray, ray_nodes

pytestmark = [*needs_ray, pytest.mark.cluster]

NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes(NODES) as nodes:
        yield nodes


class RayLauncher(EngineLauncher):
    """Runs `python -m launch.ray`, with jobs of its own."""

    engine = "ray"
    patient = (*EngineLauncher.patient, "--env=PYTHONPATH")
    small = ("--num_ps=1", "--num_workers=1", "--max_restarts=1")
    is_shipped = True

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

    def check_places(self):
        where = self.where()
        assert len(where) == 5
        assert where["ps:0"] != where["ps:1"]
        others = {node for task, node in where.items() if not task.startswith("ps")}
        assert len(others) == 1

    def check_running(self):
        where = self.where()
        assert len(where) == len(actors()) == 3
        assert self.nodes.groups() == 2
        assert self.nodes.free() == CPUS * len(NODES) - 3
        status = self.jobs("status", "mine").stdout
        places = re.findall(r"^  (\S+)  on (\S+)  \S+:\d+  \S+\.log$", status, re.M)
        names = {task: task.replace("chief", "chief:0") for task, _ in places}
        assert {names[task]: node for task, node in places} == where

    def cut(self):
        actors()[0].kill()
        return r"\S+"

    def wait_until_nothing_is_left(self):
        super().wait_until_nothing_is_left()
        wait_for(self.nodes.is_empty, "end of the job for Ray")


@pytest.fixture
def launcher(tmp_path, nodes):
    with RayLauncher(tmp_path, nodes) as launcher:
        yield launcher
        launcher.wait_until_nothing_is_left()


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
    process = launcher.start(
        *("--num_ps=1", "--num_workers=3", "--cpus_per_task=3", "--min_workers=1"),
        launcher.waiting(),
    )
    launcher.wait_for_log("chief")
    assert {*launcher.where()} == {"chief:0", "ps:0", "worker:0"}
    # What it could not use, it does not ask for.
    assert nodes.groups() == 2
    launcher.over.touch()
    _, errors = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, errors
    assert "others can come only with --checkpoint_dir" in errors


class TestOnRay(EngineSuite):
    pass


def test_nothing_is_left_of_two_that_are_killed(launcher):
    nothing_is_left(launcher, lambda it: kill_child(it, "supervisor", too=True))


@pytest.mark.thorough
def test_nothing_is_left_without_the_driver(launcher):
    end = lambda process: kill_child(process, "ray_driver_process")  # noqa: E731
    assert nothing_is_left(launcher, end).returncode == 255


LOST_NODES = [
    # There is a third node for the second ps.
    (["--num_ps=2"], "Ray has given it another, 127.0.0."),
    # There is no third node for the third ps, so two of them must share one.
    (["--num_ps=3", "--timeout=10"], "Ray has no other like it"),
]


@pytest.mark.in_part("flags0-Ray has given it another, 127.0.0.")
@pytest.mark.parametrize(("flags", "message"), LOST_NODES)
def test_a_node_that_dies_moves_its_tasks(launcher, nodes, flags, message):
    process = launcher.start(
        "--name=mine", "--num_workers=1", *flags, launcher.waiting()
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
        launcher.wait_for_log("move-1/chief")
        after = launcher.where()
        assert set(after) == set(before)
        assert victim not in after.values()
        status = launcher.jobs("status", "mine").stdout
        assert f" {victim}" not in status
        assert status.count("/move-1/") == len(before)
        launcher.over.touch()
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
