"""A contender of peers.py as processes in a network of their own, driven from here."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
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
        assert self._network.stdout is not None
        if self._network.stdout.readline() != b"up\n":
            raise PeerError("cannot make a network namespace: run this as root")
        for process in processes:
            self._start(process)
        self._processes = {
            task: psutil.Process(child.pid) for task, child in self._children.items()
        }

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
        """Returns the loss, the accuracy and the counted updates, from the first leader."""
        return self._ask(list(self._leaders)[:1], evaluate=True)[0]

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds that each task has used, by its name."""
        return {task: _cpu(process) for task, process in self._processes.items()}

    def memory(self) -> dict[str, int]:
        """Returns the main memory of each task in bytes, without what it shares."""
        return {
            task: process.memory_full_info().uss
            for task, process in self._processes.items()
        }

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
        self._signal(signal.SIGKILL)
        for child in self._children.values():
            child.wait()
        self._network.communicate()

    def _start(self, process: Process) -> None:
        inside = ["nsenter", f"--net=/proc/{self._network.pid}/ns/net"]
        command = [*inside, "setpriv", "--pdeathsig", "KILL", *process.argv]
        env, passed = {**os.environ, **process.env}, []
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
                start_new_session=True,
            )
        for each in passed:
            each.close()

    def _log(self, task: str) -> Path:
        return self._logs / f"{task.replace(':', '-')}.log"

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                # Its own session: whatever it has started stops with it.
                os.killpg(child.pid, number)

    def _ask(
        self, leaders: Sequence[str] | None = None, **request: Any
    ) -> list[dict[str, Any]]:
        asked = list(self._leaders) if leaders is None else leaders
        for leader in asked:
            self._leaders[leader].sendall(json.dumps(request).encode() + b"\n")
        return [self._receive(leader) for leader in asked]

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


def _cpu(process: psutil.Process) -> float:
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total
