"""Hosts with a real sshd: one network namespace each."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.network.namespaces import network as network_of

from ..launch_programs.launcher import wait_for
from ..support.deadline import DEADLINE
from ..support.namespaces import host_of, needs_root, needs_stunnel

HOME = "home"

needs_sshd = [
    pytest.mark.engine,
    pytest.mark.namespaces,
    needs_root,
    pytest.mark.skipif(
        shutil.which("sshd") is None or shutil.which("ssh") is None,
        reason="there is no sshd: apt-get install openssh-server",
    ),
    needs_stunnel,
]


class SshHosts:
    """Running hosts, and the ssh that reaches them from the host `home`.

    Attributes:
        names: Their names, as ssh knows them.
        ssh: The command, for `launch.ssh --ssh`.
        sshd: The process of each host's sshd.
    """

    def __init__(self, network, names, directory):
        self.network = network
        self.names = names
        self.directory = directory
        self.ssh = f"ssh -F {directory / 'ssh_config'}"
        self.sshd = {}

    def start(self):
        key, host_key = (self.directory / name for name in ("key", "host_key"))
        for path in (key, host_key):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path]
            subprocess.run(command, check=True)
        (self.directory / "ssh_config").write_text(
            "".join(
                f"Host {name}\n  HostName {self.network.address(name)}\n"
                for name in self.names
            )
            + f"Host *\n  User root\n  IdentityFile {key}\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.directory / 'known_hosts'}\n"
        )
        public = host_key.with_suffix(".pub").read_text()
        (self.directory / "known_hosts").write_text(
            "".join(f"{self.network.address(name)} {public}" for name in self.names)
        )
        for name in self.names:
            self.start_sshd(name)
        for name in self.names:
            self.wait_for_sshd(name)

    def start_sshd(self, name):
        options = {
            "ListenAddress": self.network.address(name),
            "HostKey": self.directory / "host_key",
            "AuthorizedKeysFile": self.directory / "key.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PidFile": "none",
            "LogLevel": "ERROR",
        }
        config = self.directory / f"sshd_{name}"
        config.write_text("".join(f"{k} {v}\n" for k, v in options.items()))
        command = [shutil.which("sshd"), "-D", "-e", "-f", str(config)]
        log = (self.directory / f"sshd_{name}.log").open("wb")
        self.sshd[name] = subprocess.Popen(
            self.network.command(name, command), stdout=log, stderr=log
        )
        log.close()

    def wait_for_sshd(self, name):
        log = self.directory / f"sshd_{name}.log"
        wait_for(lambda: not self.run(name, "true").returncode, name, log.read_text)

    def run(self, name, line):
        """Runs a line of shell on a host, from `home`."""
        command = [*self.ssh.split(), "-oConnectTimeout=2", name, line]
        return subprocess.run(
            self.network.command(HOME, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def host_of(self, pid):
        """The name of the host whose network a process is in."""
        return host_of(self.network, [HOME, *self.names], pid)

    def stop(self):
        for process in self.sshd.values():
            process.kill()
            process.wait(DEADLINE)


@contextlib.contextmanager
def ssh_hosts(names, directory):
    """Creates hosts, and removes them and whatever still runs on them."""
    # sshd puts its processes without rights there; Debian makes it when it boots.
    separation = Path("/run/sshd")
    is_ours = not separation.exists()
    separation.mkdir(exist_ok=True, mode=0o755)
    try:
        with network_of([HOME, *names]) as network:
            hosts = SshHosts(network, names, directory)
            try:
                hosts.start()
                yield hosts
            finally:
                hosts.stop()
    finally:
        if is_ours:
            with contextlib.suppress(OSError):
                separation.rmdir()
