"""A real Slurm: a controller and its nodes, one network namespace each."""

import contextlib
import os
import shutil
import subprocess

import psutil
import pytest

from launch.network.namespaces import network as network_of

from ..launch_programs.launcher import ends_of_logs, wait_for
from ..support.deadline import DEADLINE
from ..support.namespaces import host_of, needs_root, needs_stunnel

HOME = "home"
GPUS = ("/dev/null", "/dev/zero")  # Slurm wants devices, and does not open them.

needs_slurm = [
    pytest.mark.engine,
    pytest.mark.namespaces,
    needs_root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))),
        reason="there is no Slurm: apt-get install slurm-wlm munge",
    ),
    needs_stunnel,
]

# What the operating system of a node would have at boot. `ip netns exec` hides /sys,
# and slurmd does not start without it.
_BOOT = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


class SlurmNodes:
    """A running cluster, and the host `home` from which jobs are submitted.

    Attributes:
        names: The names of its nodes, in Slurm's order.
    """

    def __init__(self, network, names, directory):
        self.network = network
        self.names = names
        self.directory = directory
        self.daemons = []
        self.environ = {"SLURM_CONF": str(directory / "slurm.conf")}

    def command(self, name, command):
        """Returns the command that runs another on a node."""
        namespace = self.network.namespace(name)
        return [
            *("nsenter", f"--net=/run/netns/{namespace}", "unshare", "-m", "-u"),
            *("sh", "-c", _BOOT, str(self.directory / "hosts"), name, *command),
        ]

    def start(self):
        self._configure()
        munge = self.directory / "munge"
        # munged refuses a directory that others could write.
        self._daemon(
            HOME,
            "munged",
            *("--foreground", "--force", f"--socket={munge}/socket"),
            *(f"--key-file={munge}/key", f"--pid-file={munge}/pid"),
            *(f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        )
        self._await(lambda: (munge / "socket").exists(), "munged")
        self._daemon(HOME, "slurmctld", "-D", "-c")
        for name in self.names:
            self.start_node(name)
        self._await(self._is_idle, "an idle cluster")

    def start_node(self, name):
        return self._daemon(name, "slurmd", "-D", "-N", name)

    def _is_idle(self):
        done = self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%t")
        return done.stdout.split() == ["idle"] * len(self.names)

    def run(self, *command):
        """Runs a command on the host `home`."""
        return subprocess.run(
            self.command(HOME, command),
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def host_of(self, pid):
        """The name of the node whose network a process is in."""
        return host_of(self.network, [HOME, *self.names], pid)

    def stop(self):
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            self.run("scancel", "--full", "--user=root")
            self._await(lambda: not self.run("squeue", "-h").stdout, "end of all jobs")
        for daemon in reversed(self.daemons):
            for each in [*daemon.children(recursive=True), daemon]:
                with contextlib.suppress(psutil.Error):
                    each.kill()
        psutil.wait_procs(self.daemons, DEADLINE)

    def _configure(self):
        for name in ("munge", "state", *self.names):
            (self.directory / name).mkdir(mode=0o700)
        (self.directory / "munge" / "key").write_bytes(os.urandom(128))
        (self.directory / "munge" / "key").chmod(0o400)
        (self.directory / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(
                f"{self.network.address(name)} {name}\n" for name in [HOME, *self.names]
            )
        )
        *_, first, last = self.names
        (self.directory / "gres.conf").write_text(
            "".join(f"NodeName={first},{last} Name=gpu File={gpu}\n" for gpu in GPUS)
        )
        options = {
            "ClusterName": "test",
            "SlurmctldHost": HOME,
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.directory}/munge/socket",
            "CryptoType": "crypto/munge",
            "StateSaveLocation": self.directory / "state",
            "SlurmdSpoolDir": f"{self.directory}/%n",
            "SlurmctldPidFile": self.directory / "slurmctld.pid",
            "SlurmdPidFile": f"{self.directory}/%n/pid",
            "SlurmctldLogFile": self.directory / "slurmctld.log",
            "SlurmdLogFile": f"{self.directory}/slurmd_%n.log",
            "SlurmctldParameters": "enable_configless",
            "SlurmdParameters": "config_overrides",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "JobCompType": "jobcomp/none",
            "MpiDefault": "none",
            "ReturnToService": "2",
            "KillWait": "8",
            "GresTypes": "gpu",
            "MailProg": "/bin/true",
        }
        nodes = "".join(
            f"NodeName={name} NodeAddr={self.network.address(name)} NodeHostname={name} "
            f"CPUs=8 {f'Gres=gpu:{len(GPUS)}' if name in (first, last) else ''}\n"
            for name in self.names
        )
        partition = f"Nodes={','.join(self.names)} OverSubscribe=NO"
        (self.directory / "slurm.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in options.items())
            + nodes
            + f"PartitionName=all {partition} Default=YES PriorityTier=1 GraceTime=15\n"
            + f"PartitionName=urgent {partition} PriorityTier=9 PreemptMode=OFF\n"
        )

    def _daemon(self, name, program, *args):
        log = (self.directory / f"{program}_{name}.out").open("wb")
        with log:
            process = psutil.Popen(
                self.command(name, [shutil.which(program) or program, *args]),
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.daemons.append(process)
        return process

    def _await(self, condition, what):
        wait_for(condition, what, lambda: ends_of_logs(self.directory))


@contextlib.contextmanager
def slurm_nodes(names, directory):
    """Creates a cluster, and removes it and whatever still runs on it."""
    with network_of([HOME, *names]) as network:
        nodes = SlurmNodes(network, names, directory)
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.stop()
