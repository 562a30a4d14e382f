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
from netns import network
from peer_programs.control import TASK
from peers_systems import Process

DEADLINE_SECONDS = 300.0


class PeerError(RuntimeError):
    """A contender that exited or did not answer in time."""


class Loopback:
    """A network namespace with nothing else in it: ports are free.

    Its loopback interface counts the bytes that processes exchange.
    """

    def __init__(self) -> None:
        # It holds the namespace, and ends when this process closes its input.
        self._holder = subprocess.Popen(
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
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            self.close()
            raise PeerError("cannot make a network namespace: run this as root")

    def address(self, task: str) -> str:
        """Returns the address of a task's host."""
        return "127.0.0.1"

    def command(self, task: str, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs another here, and dies with this process."""
        inside = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        return [*inside, "setpriv", "--pdeathsig", "KILL", *argv]

    def bytes(self) -> int:
        """Returns the bytes that the processes have sent to each other."""
        lines = Path(f"/proc/{self._holder.pid}/net/dev").read_text().splitlines()
        (loopback,) = (line.split() for line in lines if line.strip().startswith("lo:"))
        return int(loopback[1])

    def processes(self) -> list[psutil.Process]:
        """Returns what runs here: also what lost its parent, or is stopped."""
        here = _network_of(Path(f"/proc/{self._holder.pid}/ns/net"))
        return [p for p in _in_networks({here}) if p.pid != self._holder.pid]

    def close(self) -> None:
        """Ends the network, in which nothing runs any more."""
        self._holder.communicate()


class Links:
    """A host for each task, whose link carries so much and no more, each way.

    Args:
        tasks: Their names.
        rate: Of every link, as `tc` says it.
        tag: A letter that tells it from other networks of this process.
    """

    def __init__(self, tasks: Sequence[str], rate: str, tag: str) -> None:
        self._hosts = {task: task.replace(":", "") for task in tasks}
        self._stack = contextlib.ExitStack()
        made = network([*self._hosts.values()], tag)
        self._network = self._stack.enter_context(made)
        try:
            self._network.shape(rate)
        except BaseException:
            self.close()
            raise

    def address(self, task: str) -> str:
        """Returns the address of a task's host."""
        return self._network.address(self._hosts[task])

    def command(self, task: str, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs another there, and dies with this process."""
        return self._network.command(self._hosts[task], argv)

    def bytes(self) -> int:
        """Returns the bytes that the hosts have sent to each other."""
        return sum(self._network.bytes(host)[1] for host in self._hosts.values())

    def processes(self) -> list[psutil.Process]:
        """Returns what runs there: also what lost its parent, or is stopped."""
        names = [self._network.namespace(host) for host in self._hosts.values()]
        return _in_networks({_network_of(Path("/run/netns", name)) for name in names})

    def close(self) -> None:
        """Removes the hosts, on which nothing runs any more."""
        self._stack.close()


class Contender:
    """The processes of one contender, in a network of their own.

    Attributes:
        name: The name of the contender.
        steps: What it has trained so far, all workers together.

    Args:
        name: The name of the contender.
        processes: What it consists of.
        logs: A directory for one log file per process.
        network: Where they run; it is closed with the contender.
    """

    def __init__(
        self,
        name: str,
        processes: Sequence[Process],
        logs: Path,
        network: Loopback | Links,
    ) -> None:
        self.name = name
        self.steps = 0
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._leaders: dict[str, socket.socket] = {}
        logs.mkdir(parents=True)
        # Short: Ray has sockets in it, whose paths are limited to 107 bytes.
        self._temporary = tempfile.mkdtemp(prefix="peer")
        self._network = network
        self._starts = {each.name: each.starts for each in processes}
        try:
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
        return self._network.bytes()

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
        while inside := self._network.processes():
            for process in inside:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        for child in self._children.values():
            child.wait()
        self._network.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self, process: Process) -> None:
        command = self._network.command(process.name, process.argv)
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


def _network_of(path: Path) -> int | None:
    """Returns the network namespace that a file stands for; None if it is gone."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _in_networks(networks: set[int | None]) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if _network_of(Path(f"/proc/{process.pid}/ns/net")) in networks - {None}
    ]


def job_of(command: str, starts: Mapping[str, str], otherwise: str) -> str:
    """Returns the job that a command line is counted under."""
    for part, job in starts.items():
        if part in command:
            return job
    return otherwise
