"""A cluster whose tasks have a network namespace each, driven over the chief's input."""

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

PORT = 2222
DEADLINE = 600.0  # seconds, for any answer of the chief


class ChiefError(RuntimeError):
    """The chief exited, or does not answer."""


class Cluster:
    """A cluster of ps, workers and a chief, each on its own host.

    Args:
        hosts: Hosts with the names of `host_names`.
        num_ps: The number of ps.
        log_dir: Where the tasks write.
        program: Of the chief: it says when it is connected, and answers each request, a
            line of JSON, with a line.
        num_workers: The number of workers.
    """

    def __init__(
        self,
        hosts: Network,
        num_ps: int,
        log_dir: Path,
        program: Path,
        num_workers: int = 1,
    ) -> None:
        self._hosts = hosts
        self._program = program
        _, *names = host_names(num_ps, num_workers)
        self._workers, self._ps = names[:num_workers], names[num_workers:]
        self._log_dir = log_dir
        self._processes: list[subprocess.Popen[str]] = []
        self._cluster = tf_config.Cluster(
            chief=self._addresses(["chief"]),
            worker=self._addresses(self._workers),
            ps=self._addresses(self._ps),
        )

    def start(self) -> None:
        """Starts every task, and waits until the chief is connected to the others.

        Raises:
            ChiefError: If it does not.
        """
        for index, name in enumerate(self._ps):
            self._start(name, "ps", index, ["-m", "tfdist.server"])
        for index, name in enumerate(self._workers):
            self._start(name, "worker", index, ["-m", "tfdist.server"])
        self._chief = self._start("chief", "chief", 0, [str(self._program)])
        self._answer()

    def ask(self, **request: Any) -> dict[str, float]:
        """Sends the chief a request, and returns its answer.

        Raises:
            ChiefError: If there is none.
        """
        assert self._chief.stdin
        print(json.dumps(request), file=self._chief.stdin, flush=True)
        return self._answer()

    def bytes(self) -> tuple[int, int]:
        """Returns the bytes in and out of all ps, and of all workers, so far."""
        return (
            sum(sum(self._hosts.bytes(name)) for name in self._ps),
            sum(sum(self._hosts.bytes(name)) for name in self._workers),
        )

    def close(self) -> None:
        """Ends every process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _addresses(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{self._hosts.address(name)}:{PORT}" for name in names)

    def _start(
        self, name: str, job: str, index: int, program: Sequence[str]
    ) -> "subprocess.Popen[str]":
        task = tf_config.TFConfig(self._cluster, tf_config.Task(job, index))
        env = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            **os.environ,
            "TF_CONFIG": task.to_json(),
        }
        with (self._log_dir / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                self._hosts.command(name, [sys.executable, *program]),
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if job == "chief" else log,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return process

    def _answer(self) -> dict[str, float]:
        assert self._chief.stdout
        ready, _, _ = select.select([self._chief.stdout], [], [], DEADLINE)
        line = self._chief.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        log = (self._log_dir / "chief.log").read_text()[-2000:]
        why = "has ended" if ready else f"did not answer within {DEADLINE:g} s"
        raise ChiefError(f"the chief {why}:\n{log}")


def host_names(num_ps: int, num_workers: int = 1) -> list[str]:
    """The hosts of a cluster: the chief, the workers and the ps."""
    workers = [f"worker{index}" for index in range(num_workers)]
    return ["chief", *workers, *(f"ps{index}" for index in range(num_ps))]


@contextlib.contextmanager
def cluster(
    hosts: Network, num_ps: int, program: Path, num_workers: int = 1
) -> Iterator[Cluster]:
    """Starts a cluster, and stops it on exit."""
    with tempfile.TemporaryDirectory() as log_dir, contextlib.ExitStack() as stack:
        started = Cluster(hosts, num_ps, Path(log_dir), program, num_workers)
        stack.callback(started.close)
        started.start()
        yield started
