"""Contenders: a chief and its cluster each, as processes driven from this one."""

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from workload import Workload

import launch
import tf_config

CONTENDERS = ("fit", "fit_arrays", "tf_keras", "loop")
_DEADLINE_SECONDS = 900.0


class ContenderError(RuntimeError):
    """A contender that exited or did not answer in time."""


class Contender:
    """A chief and its cluster, driven from here.

    Args:
        name: One of `CONTENDERS`.
        servers: The running ps and workers.
    """

    def __init__(self, name: str, servers: launch.Servers) -> None:
        self.name = name
        self._log = Path(servers.log_dir) / "chief.log"
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._chief = spawn.Process(
            target=_serve,
            args=(name, servers.tf_config, theirs, self._log),
            daemon=True,
        )
        self._chief.start()
        theirs.close()
        self._tasks = {
            task: psutil.Process(pid)
            for task, pid in {"chief": self._chief.pid, **servers.pids}.items()
        }
        self._iterations = self._worker_steps = 0

    def connect(self) -> None:
        """Waits until the chief has connected to its cluster."""
        self._receive()

    def warm_up(self, workload: Workload) -> None:
        """Builds the model, traces the step and runs the first repeat."""
        self._iterations = 0
        self._connection.send(workload)
        self.run()

    def run(self) -> tuple[float, int, int | None]:
        """Runs one repeat.

        Returns:
            The seconds, and the steps that the optimizer and the workers counted.
        """
        self._connection.send("begin")
        seconds, iterations, worker_steps = self._receive()
        counted = iterations - self._iterations
        self._iterations = iterations
        if worker_steps is not None:
            worker_steps, self._worker_steps = (
                worker_steps - self._worker_steps,
                worker_steps,
            )
        return seconds, counted, worker_steps

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds that each task has used, by its name."""
        times = {task: process.cpu_times() for task, process in self._tasks.items()}
        return {task: each.user + each.system for task, each in times.items()}

    def memory(self) -> int:
        """Returns the main memory of the tasks in bytes, counting shared pages once."""
        every = [process.memory_full_info() for process in self._tasks.values()]
        return sum(each.pss for each in every)

    def close(self) -> None:
        """Stops the chief."""
        self._connection.close()
        self._chief.terminate()
        self._chief.join()

    def _receive(self) -> Any:
        if not self._connection.poll(_DEADLINE_SECONDS):
            raise ContenderError(
                f"{self.name} did not answer within {_DEADLINE_SECONDS:g} s"
            )
        try:
            return self._connection.recv()
        except EOFError:
            raise ContenderError(
                f"the chief of {self.name} ended:\n{self._log.read_text()}"
            ) from None


def _serve(
    name: str, config: tf_config.TFConfig, connection: Connection, log: Path
) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Imported late: TensorFlow is for the chiefs, not for the process that measures.
    import contenders

    # The process that measures is gone: nobody is left to tell.
    with contextlib.suppress(EOFError, BrokenPipeError):
        contenders.serve(name, config, connection)


@contextlib.contextmanager
def running(
    names: Sequence[str], num_ps: int, num_workers: int
) -> Iterator[list[Contender]]:
    """Starts every contender with its own cluster, and stops them all on exit."""
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(tempfile.TemporaryDirectory())
        contenders = []
        for name in names:
            servers = stack.enter_context(
                launch.servers(num_ps, num_workers, log_dir=os.path.join(logs, name))
            )
            contender = Contender(name, servers)
            stack.callback(contender.close)
            contender.connect()
            contenders.append(contender)
        yield contenders
