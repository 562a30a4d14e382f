"""The processes of all_reduce.py, each on a host that is a network namespace.

Two clusters share the hosts: a chief with TensorFlow servers, for all-reduces inside one
graph, and members that each run a program, for TensorFlow's between-graph collectives.
They take turns; the other one is idle.
"""

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

from netns import Network

import tf_config

SERVER_PORT, MEMBER_PORT = 2222, 2223
CHIEF = "chief"
DEADLINE = 400.0  # seconds, for any answer
HERE = Path(__file__).resolve().parent


class TaskError(RuntimeError):
    """A task exited, does not answer, or reported an error."""


class Task:
    """A program that answers each line of JSON with a line of JSON.

    Args:
        name: The name in errors and of its log.
        command: The command that starts it.
        env: The environment.
        log: The file for its standard error.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: dict[str, str], log: Path
    ) -> None:
        self._name = name
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request."""
        assert self.process.stdin
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise TaskError(f"{self._name} has ended:\n{self._last_words()}") from None

    def answer(self) -> dict[str, Any]:
        """Waits for the answer.

        Raises:
            TaskError: If there is none within `DEADLINE`.
        """
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        why = "has ended" if ready else f"did not answer within {DEADLINE:g} s"
        raise TaskError(f"{self._name} {why}:\n{self._last_words()}")

    def _last_words(self) -> str:
        return self._log.read_text()[-2000:]


class Tasks:
    """Two clusters on the same hosts.

    Args:
        hosts: Hosts with the names of `host_names`.
        num_workers: The number of hosts that reduce.
        log_dir: Directory of the log files.

    Attributes:
        workers: The hosts that reduce.
        bucket_bytes: Our default bucket size; set once started.
    """

    def __init__(self, hosts: Network, num_workers: int, log_dir: Path) -> None:
        self._hosts = hosts
        self.workers = host_names(num_workers)[1:]
        self._log_dir = log_dir
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Starts all tasks, and waits until they are connected.

        Raises:
            TaskError: If they do not.
        """
        servers = self._addresses(SERVER_PORT)
        in_graph = tf_config.Cluster(
            chief=(f"{self._hosts.address(CHIEF)}:{SERVER_PORT}",), worker=servers
        )
        between_graph = tf_config.Cluster(worker=self._addresses(MEMBER_PORT))
        for index, host in enumerate(self.workers):
            worker = tf_config.Task("worker", index)
            self._start(host, in_graph, worker, ["-m", "tfdist.server"])
        chief = tf_config.Task("chief", 0)
        self._chief = self._start(CHIEF, in_graph, chief, [_program("chief")])
        self._members = [
            self._start(
                host,
                between_graph,
                tf_config.Task("worker", index),
                [_program("member")],
            )
            for index, host in enumerate(self.workers)
        ]
        self.bucket_bytes: int = self._chief.answer()["bucket_bytes"]
        for member in self._members:
            member.answer()

    def ask(self, of_cluster: str, **request: Any) -> dict[str, Any]:
        """Sends a request to the chief, or to all members.

        Args:
            of_cluster: `chief` or `members`.
            **request: The request.

        Returns:
            The answer; of several members, the one that took longest.

        Raises:
            TaskError: If there is none.
        """
        asked = [self._chief] if of_cluster == "chief" else self._members
        for task in asked:
            task.send(request)
        answers = [task.answer() for task in asked]
        return max(answers, key=lambda answer: answer.get("seconds", 0.0))

    def bytes(self) -> list[tuple[int, int]]:
        """Returns the bytes that each worker's interface has received and sent so far."""
        return [self._hosts.bytes(host) for host in self.workers]

    def close(self) -> None:
        """Stops every process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _addresses(self, port: int) -> tuple[str, ...]:
        return tuple(f"{self._hosts.address(host)}:{port}" for host in self.workers)

    def _start(
        self,
        host: str,
        cluster: tf_config.Cluster,
        task: tf_config.Task,
        program: Sequence[str],
    ) -> Task:
        name = f"{host}-{Path(program[-1]).stem}"
        env = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            **os.environ,
            "TF_CONFIG": tf_config.TFConfig(cluster, task).to_json(),
        }
        command = self._hosts.command(host, [sys.executable, *program])
        started = Task(name, command, env, self._log_dir / f"{name}.log")
        self._processes.append(started.process)
        return started


def _program(name: str) -> str:
    return str(HERE / f"all_reduce_{name}.py")


def host_names(num_workers: int) -> list[str]:
    """The names of the chief's host and of those that reduce."""
    return [CHIEF, *(f"worker{index}" for index in range(num_workers))]


@contextlib.contextmanager
def tasks(hosts: Network, num_workers: int) -> Iterator[Tasks]:
    """Starts both clusters, and stops them on exit."""
    with tempfile.TemporaryDirectory() as log_dir, contextlib.ExitStack() as stack:
        started = Tasks(hosts, num_workers, Path(log_dir))
        stack.callback(started.close)
        started.start()
        yield started
