"""`launch.ssh` against a real sshd on each of three hosts, which are network namespaces."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..launch_programs.engine_launcher import ELASTIC, PATIENCE, EngineLauncher
from ..launch_programs.engine_suite import EngineSuite, kill_child, nothing_is_left
from ..launch_programs.launcher import DEADLINE, SLEEP, marked, wait_for
from ..support.processes import still_running
from .ssh_hosts import HOME, needs_sshd, ssh_hosts

pytestmark = [*needs_sshd, pytest.mark.cluster]

HOSTS = ("h0", "h1", "h2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    before = set(psutil.pids())
    with ssh_hosts(HOSTS, tmp_path_factory.mktemp("sshd")) as hosts:
        yield hosts
    left = [each for each in psutil.process_iter() if each.pid not in before]
    assert [each for each in left if is_sshd(each)] == []


def is_sshd(process):
    try:
        return "sshd" in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class SshLauncher(EngineLauncher):
    """Runs `python -m launch.ssh` on the host `home`."""

    engine = "ssh"
    listening = ()

    def __init__(self, directory, hosts):
        super().__init__(directory, prefix=hosts.network.command(HOME, []))
        self.hosts = hosts
        self.command = (
            *(sys.executable, "-m", "launch.ssh", f"--ssh={hosts.ssh}"),
            *(f"--hosts={','.join(HOSTS)}", "--log_dir=logs", "--grace_period=5"),
            *("--env=TEST_MARK", "--env=PYTHONPATH"),
        )

    def where(self):
        """The host of each task."""
        return {task: self.hosts.host_of(pid) for task, pid in self.tasks().items()}

    def check_places(self):
        assert self.where() == {
            **{"ps:0": "h0", "ps:1": "h1", "worker:0": "h2", "worker:1": "h0"},
            "chief:0": "h1",
        }
        assert sorted(tunnels(self)) == [*HOSTS]

    def check_running(self):
        status = self.jobs("status", "mine").stdout
        found = re.findall(r"^  (?:ps|worker):\d  on \S+  (\S+):(\d+) ", status, re.M)
        self.listening = [(host, int(port)) for host, port in found]
        assert len(self.listening) == 4
        assert {host for host, _ in self.listening} == {"127.0.0.1"}
        # A host reaches its own tasks directly, and the others through its tunnel.
        assert all(is_open(self.hosts, each, "h0") for each in self.listening)
        assert sorted(tunnels(self)) == [*HOSTS]
        assert len(key_holders(self.hosts)) == len(HOSTS)

    def wait_until_nothing_is_left(self):
        super().wait_until_nothing_is_left()
        assert not any(is_open(self.hosts, each, "h0") for each in self.listening)
        assert key_holders(self.hosts) == set()

    def disturb(self, process):
        return "mutual TLS between the hosts"

    def cut(self):
        victim = psutil.Process(self.tasks()["worker:0"])
        assert self.hosts.host_of(victim.pid) == "h2"
        for session in psutil.Process(self.hosts.sshd["h2"].pid).children():
            session.kill()
        assert still_running([victim]) == []
        return "worker:0"


@pytest.fixture
def launcher(tmp_path, hosts):
    with SshLauncher(tmp_path, hosts) as launcher:
        yield launcher
        # ssh and the agents have none of the job's marks, but sshd is their ancestor.
        wait_for(lambda: not sessions(hosts), "end of the last session")


def sessions(hosts, *names):
    """What runs under the sshd of some hosts, or of all."""
    found = []
    for name in names or hosts.sshd:
        found += psutil.Process(hosts.sshd[name].pid).children(recursive=True)
    return found


def is_open(hosts, address, source):
    """Whether an address can be reached from a host."""
    code = f"import socket; socket.create_connection({address!r}, 2)"
    command = hosts.network.command(source, [sys.executable, "-c", code])
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def tunnels(launcher):
    """The processes of stunnel that the launcher has started, by host."""
    found = {}
    for pid in marked(launcher.mark):
        # One that has just ended may still be in the list.
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if "stunnel" in process.name():
                found[launcher.hosts.host_of(pid)] = process
    return found


def key_holders(hosts):
    """The processes on the hosts that have the file of a key open."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            pid = int(path.parts[2])
            # Other jobs of this machine have keys, too.
            if os.readlink(path).startswith("/memfd:key") and hosts.host_of(pid):
                found.add(pid)
    return found


class TestOnSsh(EngineSuite):
    pass


def test_nothing_is_left_of_two_that_are_killed(launcher):
    nothing_is_left(launcher, lambda it: kill_child(it, "supervisor", too=True))


def test_the_tasks_of_a_host_that_stays_away_move_to_the_others(launcher, hosts):
    saves = 'lambda *_: sys.exit(print("saved", flush=True))'
    script = launcher.waiting(f"import signal; signal.signal(signal.SIGTERM, {saves})")
    process = launcher.start("--name=mine", script)
    launcher.wait_for_log("chief")
    assert hosts.host_of(launcher.tasks()["worker:0"]) == "h2"
    for each in [*sessions(hosts, "h2"), hosts.sshd["h2"]]:
        each.kill()
    try:
        hosts.sshd["h2"].wait(DEADLINE)
        launcher.wait_for_log("move-1/chief")
        where = launcher.where()
        status = launcher.jobs("status", "mine").stdout
        launcher.over.touch()
        _, errors = process.communicate(timeout=DEADLINE)
    finally:
        hosts.start_sshd("h2")
        hosts.wait_for_sshd("h2")
    assert process.returncode == 0, errors
    assert launcher.log("chief") == b"ready\nsaved\n"
    assert errors.count("restarting worker:0") == 3
    assert "h2 cannot be reached any more: its tasks move to other hosts" in errors
    assert sorted(where) == ["chief:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    assert {where["ps:0"], where["ps:1"]} == {"h0", "h1"} == {*where.values()}
    assert "h2" not in status
    assert "h0" in status


def test_a_host_without_sshd_is_named_before_anything_starts(launcher, hosts):
    hosts.sshd["h1"].kill()
    hosts.sshd["h1"].wait(DEADLINE)
    try:
        status, output, errors = launcher.run(launcher.script(SLEEP))
    finally:
        hosts.start_sshd("h1")
        hosts.wait_for_sshd("h1")
    assert status == 2
    assert output == ""
    assert re.search(r"h1 cannot be reached.* port 22: Connection refused", errors)
    assert not re.search("h0 cannot|h2 cannot", errors)
    assert not (launcher.directory / "logs").exists()


@pytest.mark.parametrize("secure", ["tls", "private"])
def test_a_worker_joins_whose_host_was_not_there_at_the_start(launcher, hosts, secure):
    hosts.sshd["h2"].kill()
    hosts.sshd["h2"].wait(DEADLINE)
    try:
        process = launcher.start(
            *("--min_workers=1", f"--secure={secure}", launcher.script(SLEEP))
        )
        launcher.wait_for_log("chief")
        said = [process.stderr.readline()]
        while "giving up" not in said[-1]:
            assert said[-1], said
            said.append(process.stderr.readline())
        assert set(launcher.tasks()) == {"chief:0", "ps:0", "ps:1", "worker:1"}
    finally:
        hosts.start_sshd("h2")
        hosts.wait_for_sshd("h2")
    # The launcher tries every half minute.
    worker = wait_for(lambda: launcher.tasks().get("worker:0"), "worker:0")
    assert hosts.host_of(worker) == "h2"
    chief = launcher.tasks()["chief:0"]
    launcher.wait_for_log("worker-0", b"hello")
    # The launcher knows that it has this worker again, and restarts it.
    time.sleep(2)
    launcher.kill("worker:0")
    assert launcher.tasks()["chief:0"] == chief
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    errors = "".join(said) + errors
    assert re.search(
        r"h2 cannot be reached.*starting without .*--min_workers=1", errors
    )
    given_up = "h2 cannot be reached any more: giving up worker:0; the job goes on with"
    assert f"{given_up} 1 of 2 workers (--min_workers=1)" in errors
    assert "worker:0 is back: 2 of 2 workers" in errors
    assert errors.count("giving up") == 1


def test_training_is_joined_by_a_host_that_comes_later(launcher, hosts):
    launcher.use_real_tfdist()
    enough = launcher.directory / "enough"
    hosts.sshd["h2"].kill()
    hosts.sshd["h2"].wait(DEADLINE)
    try:
        process = launcher.start(
            *("--min_workers=1", f"--startup_timeout={PATIENCE:g}"),
            *("--env=TF_CPP_MIN_LOG_LEVEL=3", str(ELASTIC), "arrays", "40", enough),
            # A pipe that nobody reads would stop the launcher.
            stdout=subprocess.DEVNULL,
        )
        launcher.wait_for_steps("one")
    finally:
        hosts.start_sshd("h2")
        hosts.wait_for_sshd("h2")
    launcher.wait_for_steps("both")
    enough.touch()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "mutual TLS between the hosts" in errors
    assert len({*launcher.counted().values()}) == 1


def test_a_worker_whose_host_stays_away_is_given_up(launcher, hosts):
    process = launcher.start("--min_workers=1", launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    before = launcher.tasks()
    assert hosts.host_of(before["worker:0"]) == "h2"
    for each in [*sessions(hosts, "h2"), hosts.sshd["h2"]]:
        each.kill()
    try:
        hosts.sshd["h2"].wait(DEADLINE)
        # Beyond the third attempt, and the next one.
        time.sleep(25)
        after = launcher.tasks()
        assert process.poll() is None, process.communicate()
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE)
    finally:
        hosts.start_sshd("h2")
        hosts.wait_for_sshd("h2")
    assert after == {name: pid for name, pid in before.items() if name != "worker:0"}
    assert errors.count("giving up worker:0; the job goes on with 1 of 2 workers") == 1
    assert "move to other hosts" not in errors


def test_no_secret_of_a_task_is_on_a_command_line(launcher):
    process = launcher.start("--env=SECRET=opensesame", launcher.script(SLEEP), "x")
    launcher.wait_for_log("chief")
    lines = [
        (Path("/proc") / str(pid) / "cmdline").read_bytes()
        for pid in psutil.pids()
        if Path(f"/proc/{pid}/cmdline").exists()
    ]
    (typed,) = [
        line for line in lines if b"opensesame" in line and b"setpriv" not in line
    ]
    assert b"launch.ssh" in typed
    assert (
        b"SECRET=opensesame"
        in Path(f"/proc/{launcher.tasks()['chief:0']}/environ").read_bytes()
    )
    process.terminate()
    process.communicate(timeout=DEADLINE)
