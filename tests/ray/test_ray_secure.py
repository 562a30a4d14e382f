"""`launch.ray` between hosts, where it is closed to strangers."""

import re
import subprocess
import sys

import psutil
import pytest

from ..launch_programs.engine_launcher import EngineLauncher
from ..launch_programs.launcher import DEADLINE, marked, wait_for
from .ray_hosts import needs_hosts, ray_hosts

pytestmark = [*needs_hosts, pytest.mark.cluster]

HOSTS = ("h0", "h1")


@pytest.fixture(scope="module")
def hosts():
    with ray_hosts(HOSTS) as hosts:
        yield hosts


class RayLauncher(EngineLauncher):
    """Runs `python -m launch.ray` on the host of Ray's head."""

    def __init__(self, directory, hosts):
        super().__init__(directory, hosts.environ, hosts.command("h0", []))
        self.command = (
            *(sys.executable, "-m", "launch.ray", f"--address={hosts.address}"),
            "--env=TEST_MARK",
        )


def is_open(hosts, source, address):
    """Whether an address can be reached from a host."""
    code = f"import socket; socket.create_connection({address!r}, 2)"
    command = hosts.command(source, [sys.executable, "-c", code])
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def stunnels(launcher, hosts):
    """The hosts of the processes of stunnel that the launcher has started."""
    found = [psutil.Process(pid) for pid in marked(launcher.mark)]
    return sorted(hosts.host_of(each.pid) for each in found if "stunnel" in each.name())


def test_the_tasks_meet_through_tls_and_their_ports_are_closed(hosts, tmp_path):
    with RayLauncher(tmp_path, hosts) as launcher:
        process = launcher.start(
            *("--log_dir=logs", "--num_workers=1", "--name=mine"),
            launcher.waiting(),
        )
        launcher.wait_for_log("chief")
        status = launcher.jobs("status", "mine").stdout
        places = re.findall(r"^  (ps:\d)  on (\S+)  127\.0\.0\.1:(\d+) ", status, re.M)
        assert [task for task, *_ in places] == ["ps:0", "ps:1"]
        assert len({host for _, host, _ in places}) == 2
        for _, address, port in places:
            for host in HOSTS:
                # Through the tunnel from the other host, but not past it.
                assert is_open(hosts, host, ("127.0.0.1", int(port)))
                assert not is_open(hosts, host, (address, int(port)))
        assert stunnels(launcher, hosts) == ["h0", "h1"]
        launcher.over.touch()
        _, errors = process.communicate(timeout=2 * DEADLINE)
        assert process.returncode == 0, errors
        assert "closed to other machines; mutual TLS between the hosts" in errors
        launcher.wait_until_nothing_is_left()


def test_a_worker_that_comes_later_meets_the_others_through_tls(hosts, tmp_path):
    with RayLauncher(tmp_path, hosts) as launcher:
        # The two hosts have room for four such tasks.
        launcher.command = (*launcher.command, "--cpus_per_task=2")
        other = launcher.start(
            *("--num_ps=0", "--num_workers=1", "--log_dir=other"),
            launcher.waiting(until="free"),
        )
        wait_for((tmp_path / "other" / "worker-0.log").exists, "task of the other job")
        process = launcher.start(
            *("--num_ps=1", "--min_workers=1", "--log_dir=logs", "--max_restarts=0"),
            *("--checkpoint_dir=checkpoints", launcher.waiting()),
        )
        launcher.wait_for_log("chief")
        assert not (tmp_path / "logs" / "worker-1.log").exists()
        (tmp_path / "free").touch()
        assert other.communicate(timeout=2 * DEADLINE)[1]
        launcher.wait_for_log("move-1/chief")
        launcher.wait_for_log("move-1/worker-1", b"hello")
        assert stunnels(launcher, hosts) == ["h0", "h1"]
        launcher.over.touch()
        _, errors = process.communicate(timeout=2 * DEADLINE)
        assert process.returncode == 0, errors
        assert errors.count("mutual TLS between the hosts") == 2
        assert "Ray has room for 1 more of the workers" in errors
        launcher.wait_until_nothing_is_left()
