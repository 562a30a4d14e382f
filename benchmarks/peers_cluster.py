"""A contender of peers.py as processes in a network of their own, driven from here."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from peer_programs.control import TASK
from peers_systems import Process

DEADLINE_SECONDS = 300.0


class PeerError(RuntimeError):
    """A contender that exited or did not answer in time."""


class Contender:
    """The processes of one contender.

    They share a network namespace with nothing else in it: ports are free, and its
    loopback interface counts the bytes that they exchange.

    Attributes:
        name: The name of the contender.
        steps: What it has trained so far, all workers together.

    Args:
        name: The name of the contender.
        processes: What it consists of.
        logs: A directory for one log file per process.
    """

    def __init__(self, name: str, processes: Sequence[Process], logs: Path) -> None:
        self.name = name
        self.steps = 0
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._leaders: dict[str, socket.socket] = {}
        logs.mkdir(parents=True)
        # Short: Ray has sockets in it, whose paths are limited to 107 bytes.
        self._temporary = tempfile.mkdtemp(prefix="peer")
        self._namespace: int | None = None
        # It holds the namespace, and ends when this process closes its input.
        self._network = subprocess.Popen(
            [
                "unshare",
                "--net",
                "sh",
                "-c",
                "ip link set lo up && echo up && exec cat",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._starts = {each.name: each.starts for each in processes}
        try:
            assert self._network.stdout is not None
            if self._network.stdout.readline() != b"up\n":
                raise PeerError("cannot make a network namespace: run this as root")
            self._namespace = _network_of(self._network.pid)
            for process in processes:
                self._start(process)
        except BaseException:
            self.close()
            raise

    def connect(self) -> None:
        """Waits until every leader is ready to train."""
        for leader in self._leaders:
            self._receive(leader)

    def train(self, steps: int) -> float:
        """Trains a number of steps, each leader an equal share of them.

        Returns:
            The seconds that the slowest leader took.
        """
        if steps % len(self._leaders):
            raise ValueError(
                f"{steps} steps cannot be shared among {len(self._leaders)} leaders"
            )
        self.steps += steps
        answers = self._ask(train=steps // len(self._leaders))
        return max(answer["seconds"] for answer in answers)

    def evaluate(self) -> dict[str, Any]:
        """Returns the losses, the accuracy and the counted updates, from the first leader.

        All leaders are asked: those of a synchronous contender do everything together.
        """
        return self._ask(evaluate=True)[0]

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds that each process has used, by its task.

        What a process has started by itself is counted as `Process.starts` says.
        """
        used: dict[str, float] = {}
        for task, process in self._every():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[task] = used.get(task, 0.0) + times.user + times.system
        return used

    def network_bytes(self) -> int:
        """Returns the bytes that the processes have sent to each other."""
        lines = Path(f"/proc/{self._network.pid}/net/dev").read_text().splitlines()
        (loopback,) = (line.split() for line in lines if line.strip().startswith("lo:"))
        return int(loopback[1])

    def stop(self) -> None:
        """Stops the processes until `go_on`: threads that wait may spin."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets stopped processes run."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends every process, and with the last one their network."""
        for leader in self._leaders.values():
            leader.close()
        while inside := self._inside():
            for process in inside:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        for child in self._children.values():
            child.wait()
        self._network.communicate()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self, process: Process) -> None:
        inside = ["nsenter", f"--net=/proc/{self._network.pid}/ns/net"]
        command = [*inside, "setpriv", "--pdeathsig", "KILL", *process.argv]
        env, passed = {**os.environ, **process.env, "TMPDIR": self._temporary}, []
        task = process.task
        if task is not None and process.leads:
            ours, theirs = socket.socketpair()
            self._leaders[process.name] = ours
            passed.append(theirs)
            task = replace(task, socket=theirs.fileno())
        if task is not None:
            env[TASK] = task.to_json()
        with open(self._log(process.name), "wb") as log:
            self._children[process.name] = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[each.fileno() for each in passed],
                cwd=self._logs,
            )
        for each in passed:
            each.close()

    def _log(self, task: str) -> Path:
        return self._logs / f"{task.replace(':', '-')}.log"

    def _every(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yields every process and its task, and what it has started."""
        for task, child in self._children.items():
            try:
                process = psutil.Process(child.pid)
                started = process.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            yield task, process
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    command = " ".join(each.cmdline())
                    yield job_of(command, self._starts[task], task), each

    def _inside(self) -> list[psutil.Process]:
        """Returns what runs in the network: also what lost its parent, or is stopped."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self._network.pid
            and _network_of(process.pid) == self._namespace is not None
        ]

    def _signal(self, number: int) -> None:
        for _, process in list(self._every()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _ask(self, **request: Any) -> list[dict[str, Any]]:
        for connection in self._leaders.values():
            connection.sendall(json.dumps(request).encode() + b"\n")
        return [self._receive(leader) for leader in self._leaders]

    def _receive(self, leader: str) -> dict[str, Any]:
        received, deadline = b"", time.monotonic() + DEADLINE_SECONDS
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([self._leaders[leader]], [], [], 1)
            ended = [t for t, each in self._children.items() if each.poll() is not None]
            if ended:
                self._fail(f"{', '.join(ended)} ended")
            if not ready and time.monotonic() > deadline:
                self._fail(f"{leader} did not answer within {DEADLINE_SECONDS:g} s")
            if not ready:
                continue
            part = self._leaders[leader].recv(1 << 16)
            if not part:
                self._fail(f"{leader} ended")
            received += part
        return json.loads(received)

    def _fail(self, why: str) -> None:
        ends = [
            f"--- {task}\n{self._log(task).read_text(errors='replace')[-2000:]}"
            for task in self._children
        ]
        raise PeerError(f"{self.name}: {why}\n" + "\n".join(ends))


def _network_of(pid: int) -> int | None:
    """Returns the network namespace of a process; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def job_of(command: str, starts: Mapping[str, str], otherwise: str) -> str:
    """Returns the job that a command line is counted under."""
    for part, job in starts.items():
        if part in command:
            return job
    return otherwise
