"""`launch.slurm` against a real Slurm of three nodes, which are network namespaces."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..launch_programs.engine_launcher import ELASTIC, PATIENCE, EngineLauncher
from ..launch_programs.engine_suite import EngineSuite, nothing_is_left
from ..launch_programs.launcher import DEADLINE, SLEEP, marked, wait_for
from .slurm_nodes import HOME, needs_slurm, slurm_nodes

pytestmark = [*needs_slurm, pytest.mark.cluster]

# In Slurm's order, which is not that of the alphabet.
NODES = ("n2", "n9", "n10")
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    before = set(psutil.pids())
    with slurm_nodes(NODES, tmp_path_factory.mktemp("slurm")) as nodes:
        yield nodes
    left = [each for each in psutil.process_iter() if each.pid not in before]
    assert [each for each in left if is_daemon(each)] == []


def is_daemon(process):
    try:
        return process.name() in DAEMONS and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class SlurmLauncher(EngineLauncher):
    """Runs `python -m launch.slurm` on the host `home`."""

    engine = "slurm"
    patient = (f"--startup_timeout={PATIENCE:g}", "--grace_period=10", "--nodes=3")
    small = ("--nodes=3",)
    chief_host = "n9"
    runs_elsewhere = True

    def __init__(self, directory, nodes):
        super().__init__(directory, nodes.environ, nodes.command(HOME, []))
        self.nodes = nodes
        self.command = (
            *(sys.executable, "-m", "launch.slurm"),
            *("--log_dir=logs", "--grace_period=5"),
        )

    def hosts(self):
        """The node of each task that runs, by its name."""
        return {task: self.nodes.host_of(pid) for task, pid in self.tasks().items()}

    def check_places(self):
        assert self.hosts() == {
            **{"ps:0": "n2", "ps:1": "n9", "worker:0": "n10", "worker:1": "n2"},
            "chief:0": "n9",
        }

    def check_running(self):
        self.check_places()
        place = r"^  ps:1  on n9  127\.0\.0\.1:\d+  \S+/logs/ps-1.log$"
        assert re.search(place, self.jobs("status", "mine").stdout, re.M)

    def is_gone(self):
        return not self.nodes.run("squeue", "-h").stdout

    def disturb(self, process):
        self.wait_for_epoch(2, process, times=2)
        self.preempt("mine")
        said = self.log("chief").decode()
        (saved,) = re.findall(r"SIGTERM: saving fit at (epoch \d of 4, step \d+)", said)
        self.restart("mine")
        return rf"mutual TLS between the hosts[^\0]*fit continues from \S+: {saved}\n"

    def cut(self):
        # The task's connection, and that of the node's tunnel.
        victims = [
            pid for pid in marked(self.mark) if b"--nodelist=n10" in line_of(pid)
        ]
        assert len(victims) >= 2
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        for text in (b"restarting worker:0", b"stunnel on n10 was lost"):
            wait_for(lambda text=text: text in self.log("launch"), text)
        return "worker:0"

    def preempt(self, name):
        """Lets Slurm take the nodes of a job, and give them back at once."""
        urgent = ["-N3", "--exclusive", "-p", "urgent", "-o", "/dev/null"]
        self.nodes.run("sbatch", *urgent, "--wrap", "sleep 0")
        self.await_requeue(name)

    def await_requeue(self, name):
        """Waits until a job is back in the queue."""
        wait_for(lambda: self._queued(name).startswith("PENDING"), "job in the queue")

    def restart(self, name):
        """Starts a job that is back in the queue without Slurm's wait of two minutes."""
        # It needs a second: a credential as old as the one it has revoked is revoked too.
        time.sleep(2)
        for line in self._queued(name).splitlines():
            job_id = line.split()[-1]
            self.nodes.run("scontrol", "update", f"jobid={job_id}", "starttime=now")

    def _queued(self, name):
        return self.nodes.run("squeue", "-h", "-n", name, "-o", "%T %r %i").stdout

    def wait_until_nothing_is_left(self):
        super().wait_until_nothing_is_left()
        wait_for(lambda: not self.nodes.run("squeue", "-h").stdout, "end of the job")


@pytest.fixture
def launcher(tmp_path, nodes):
    with SlurmLauncher(tmp_path, nodes) as launcher:
        yield launcher
        launcher.wait_until_nothing_is_left()


class TestOnSlurm(EngineSuite):
    pass


@pytest.mark.thorough
def test_nothing_is_left_by_slurms_own_command(launcher, nodes):
    nothing_is_left(launcher, lambda _: nodes.run("scancel", "--name=mine"))


def test_nothing_is_left_of_the_batch_script(launcher, nodes):
    def kill(_):
        (batch,) = [
            each
            for each in map(psutil.Process, marked(launcher.mark))
            if "--name=mine" in each.cmdline() and nodes.host_of(each.pid) == "n2"
        ]
        batch.kill()

    nothing_is_left(launcher, kill)


IMPOSSIBLE = [
    (
        ["--nodes=4"],
        "(PartitionConfig), and it was cancelled: it asks for 4 nodes, and the "
        "partitions are all (3 nodes), urgent (3 nodes)",
    ),
    (["--partition=nowhere"], "invalid partition specified: nowhere"),
    (["--gpus_per_worker=3"], "Requested node configuration is not available"),
]


@pytest.mark.in_part("flags1-invalid partition specified: nowhere")
@pytest.mark.parametrize(("flags", "message"), IMPOSSIBLE)
def test_what_slurm_does_not_have(launcher, flags, message):
    for detach in ([], ["--detach"]):
        status, output, errors = launcher.run(
            *flags, *detach, launcher.script("print('never')")
        )
        assert (status, output) == (2, "")
        assert message in errors
    # Nothing is left of it.
    assert not (launcher.directory / "logs").exists()
    assert launcher.jobs("list").stdout == ""


SAVING = """
    import os, signal, sys, time
    step = int(open("step").read()) if os.path.exists("step") else 0

    def save(*_):
        open("step", "w").write(str(step))
        sys.exit(1)

    signal.signal(signal.SIGTERM, save)
    print("ready at", step, os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
    while not os.path.exists("over"):
        step += 1
        time.sleep(0.01)
"""


# Without a handler: Slurm's own signal ends it before the launcher's does.
COUNTING = """
    import os, time
    step = int(open("step").read()) if os.path.exists("step") else 0
    print("ready at", step, os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
    while not os.path.exists("over"):
        step += 1
        if os.environ.get("SLURM_RESTART_COUNT") is None:
            with open("new", "w") as file:
                file.write(str(step))
            os.replace("new", "step")
        time.sleep(0.01)
"""
REASONS = ["preemption", "preemption unheard", "preemption of GPUs", "time limit"]


@pytest.mark.in_part("preemption", "time limit")
@pytest.mark.parametrize("why", REASONS)
def test_a_job_goes_on_at_its_step(launcher, nodes, why):
    flags = ["--name=mine", "--nodes=3", "--max_restarts=0"]
    # Slurm warns 35 s before the end of the only minute.
    flags += ["--time=1"] if why == "time limit" else []
    if why == "preemption of GPUs":
        flags += ["--num_ps=1", "--nodes=2", "--gpus_per_worker=1"]
    script = COUNTING if why == "preemption unheard" else SAVING
    process = launcher.start(*flags, launcher.script(script))
    launcher.wait_for_log("chief", b"ready at 0 0")
    if why == "time limit":
        time.sleep(30)  # It has been warned by then.
        launcher.await_requeue("mine")
    else:
        launcher.preempt("mine")
    step = (launcher.directory / "step").read_text()
    assert int(step) > 0
    assert ": starting" in launcher.jobs("status", "mine").stdout
    launcher.restart("mine")
    launcher.wait_for_log("chief", f"ready at {step} 1".encode())
    (launcher.directory / "over").touch()
    shown, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, shown + errors
    assert "the job is back in its queue" in shown
    assert "restarting" not in shown
    assert ": ended with 0\n" in launcher.jobs("status", "mine").stdout


# It has to stop a look that takes a moment, and sometimes comes too late.
@pytest.mark.thorough
def test_a_preemption_while_the_nodes_are_looked_at(launcher):
    code = "print('ready', flush=True)"
    process = launcher.start(
        "--name=mine", "--nodes=3", "--connect_timeout=60", launcher.script(code)
    )

    def probes():
        """What looks at a node: nothing else there reads its program from its input."""
        return [pid for pid in marked(launcher.mark) if b"while len(p)" in line_of(pid)]

    for pid in wait_for(probes, "look at a node"):
        os.kill(pid, signal.SIGSTOP)
    launcher.preempt("mine")
    assert launcher.log("chief") == b""
    launcher.restart("mine")
    shown, errors = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 0, shown + errors
    assert "the job is back in its queue" in shown
    assert launcher.log("chief") == b"ready\n"


def line_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_workers_with_gpus_have_nodes_of_their_own(launcher):
    server = launcher.directory / "tfdist" / "server.py"
    server.write_text(
        "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), "
        "os.environ.get('SLURMD_NODENAME'))\n" + server.read_text()
    )
    status, output, errors = launcher.run(
        *("--num_ps=1", "--num_workers=2", "--nodes=1", "--gpus_per_worker=1"),
        launcher.script("import os; print(os.environ['SLURMD_NODENAME'])"),
    )
    assert status == 0, output + errors
    seen = {
        name: launcher.log(name).split()[:2]
        for name in ("worker-0", "worker-1", "ps-0")
    }
    assert seen == {
        "worker-0": [b"0", b"n9"],
        "worker-1": [b"1", b"n9"],
        "ps-0": [b"-1", b"n2"],
    }
    assert launcher.log("chief") == b"n2\n"


def test_workers_are_as_many_as_the_nodes_have_room_for(nodes, tmp_path):
    enough = tmp_path / "enough"
    busy = ["-w", "n10", "--exclusive", "-o", "/dev/null"]
    nodes.run("sbatch", *busy, "--wrap", "sleep 600")
    try:
        with SlurmLauncher(tmp_path, nodes) as launcher:
            launcher.use_real_tfdist()
            process = launcher.start(
                *("--num_ps=1", "--num_workers=3", "--min_workers=1", "--name=mine"),
                *("--max_restarts=0", f"--startup_timeout={PATIENCE:g}"),
                *(str(ELASTIC), "arrays", "40", enough),
                stdout=subprocess.DEVNULL,
            )
            launcher.wait_for_steps("both")
            hosts = launcher.hosts()
            assert {*hosts} == {"ps:0", "worker:0", "worker:1", "chief:0"}
            assert {*hosts.values()} == {"n2", "n9"}
            os.kill(launcher.tasks()["worker:1"], signal.SIGKILL)
            launcher.wait_for_steps("one")
            enough.touch()
            _, errors = process.communicate(timeout=PATIENCE)
    finally:
        nodes.run("scancel", "--name=wrap")
    launcher.wait_until_nothing_is_left()
    shown = launcher.log("launch").decode()
    assert process.returncode == 0, shown + errors
    assert (
        "launch.slurm: asked for 3 workers; the allocation has room for 2, and a job of "
        "Slurm does not grow: starting with these (--min_workers=1)\n" in shown
    )
    assert "giving up worker:1; the job goes on with 1 of 2 workers" in shown
    launcher.counted()


def test_the_job_goes_on_without_a_node_that_had_only_workers(launcher, nodes):
    process = launcher.start(
        *("--num_ps=1", "--num_workers=3", "--min_workers=1", "--max_restarts=0"),
        launcher.script(SLEEP),
    )
    launcher.wait_for_log("chief")
    before = launcher.hosts()
    assert [task for task, node in before.items() if node == "n10"] == ["worker:1"]
    nodes.run("scontrol", "update", "nodename=n10", "state=down", "reason=test")
    try:
        given_up = b"giving up worker:1; the job goes on with 2 of 3 workers"
        wait_for(lambda: given_up in launcher.log("launch"), "goodbye")
        rest = {task: node for task, node in before.items() if node != "n10"}
        assert launcher.hosts() == rest
        process.terminate()
        process.communicate(timeout=2 * DEADLINE)
    finally:
        nodes.run("scontrol", "update", "nodename=n10", "state=resume")


def test_the_same_command_uses_an_allocation(launcher, nodes):
    command = launcher.command
    launcher.command = ("salloc", "--quiet", "-N2", "-n5", *command)
    status, output, errors = launcher.run(launcher.script("print('hello')"))
    assert status == 0, output + errors
    assert "[chief]    hello" in output
    status, output, errors = launcher.run("--detach", launcher.script("print()"))
    assert status == 2
    assert "--detach submits a job, and this is within job" in errors
