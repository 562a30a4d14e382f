"""Tasks on hosts of their own, network namespaces, driven over their standard input."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from netns import Namespaces

import tf_config

PORT = 2222
DEADLINE = 600.0  # seconds, for any answer


class TaskError(RuntimeError):
    """A task exited, or does not answer."""


class Task:
    """A process that answers each line of JSON with a line of JSON, as answering.py does.

    Args:
        process: With pipes for its input and output.
        log: What it writes besides.
    """

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self._log = process, log

    def send(self, **request: Any) -> None:
        """Sends a request."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says why.
            print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Waits for the answer.

        Raises:
            TaskError: If there is none within `DEADLINE`.
        """
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        if line := self.process.stdout.readline() if ready else "":
            return dict(json.loads(line))
        why = "has ended" if ready else f"did not answer within {DEADLINE:g} s"
        log = self._log.read_text()[-2000:]
        raise TaskError(f"{self._log.stem} {why}:\n{log}")


class Tasks:
    """Tasks on the hosts of a network, which end together.

    Args:
        hosts: The hosts.
        log_dir: Where the tasks write.
    """

    def __init__(self, hosts: Namespaces, log_dir: Path) -> None:
        self._hosts, self._log_dir = hosts, log_dir
        self._processes: list[subprocess.Popen[str]] = []

    def addresses(self, names: Sequence[str], port: int = PORT) -> tuple[str, ...]:
        """Returns the addresses of a port on some hosts."""
        return tuple(f"{self._hosts.address(name)}:{port}" for name in names)

    def start(
        self, host: str, config: tf_config.TFConfig, program: Path | None = None
    ) -> Task:
        """Starts a program on a host, or a server of tfdist."""
        argv = [str(program)] if program else ["-m", "tfdist.server"]
        log = self._log_dir / f"{host}-{program.stem if program else 'server'}.log"
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        with log.open("w") as file:
            process = subprocess.Popen(
                self._hosts.command(host, [sys.executable, *argv]),
                env={**quiet, **os.environ, "TF_CONFIG": config.to_json()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if program else file,
                stderr=file,
                text=True,
            )
        self._processes.append(process)
        return Task(process, log)

    def start_servers(
        self, names: Sequence[str], cluster: tf_config.Cluster, job: str
    ) -> None:
        """Starts the servers of a job, each on its host."""
        for index, name in enumerate(names):
            task = tf_config.Task(job, index)
            self.start(name, tf_config.TFConfig(cluster, task))

    def close(self) -> None:
        """Ends every process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def tasks(hosts: Namespaces) -> Iterator[Tasks]:
    """Starts no task yet, and ends all of them on exit."""
    with (
        tempfile.TemporaryDirectory() as log_dir,
        contextlib.closing(Tasks(hosts, Path(log_dir))) as started,
    ):
        yield started


class Cluster:
    """A chief, a worker and ps, each on its own host.

    Args:
        hosts: Hosts with the names of `host_names`.
        started: Starts them.
        num_ps: The number of ps.
        program: Of the chief, which answers requests.

    Raises:
        TaskError: If the chief does not start.
    """

    def __init__(
        self, hosts: Namespaces, started: Tasks, num_ps: int, program: Path
    ) -> None:
        chief, worker, *ps = host_names(num_ps)
        self._hosts, self._ps, self._worker = hosts, ps, worker
        cluster = tf_config.Cluster(
            chief=started.addresses([chief]),
            worker=started.addresses([worker]),
            ps=started.addresses(ps),
        )
        started.start_servers(ps, cluster, "ps")
        started.start_servers([worker], cluster, "worker")
        task = tf_config.TFConfig(cluster, tf_config.Task("chief", 0))
        self._chief = started.start(chief, task, program)
        self._chief.answer()

    def ask(self, **request: Any) -> dict[str, float]:
        """Sends the chief a request, and returns its answer.

        Raises:
            TaskError: If there is none.
        """
        self._chief.send(**request)
        return self._chief.answer()

    def bytes(self) -> tuple[int, int]:
        """Returns the bytes in and out of all ps, and of the worker, so far."""
        ps = sum(sum(self._hosts.bytes(name)) for name in self._ps)
        return ps, sum(self._hosts.bytes(self._worker))


def host_names(num_ps: int) -> list[str]:
    """The hosts of a cluster: the chief, the worker and the ps."""
    return ["chief", "worker0", *(f"ps{index}" for index in range(num_ps))]


@contextlib.contextmanager
def cluster(hosts: Namespaces, num_ps: int, program: Path) -> Iterator[Cluster]:
    """Starts a cluster, and stops it on exit."""
    with tasks(hosts) as started:
        yield Cluster(hosts, started, num_ps, program)
