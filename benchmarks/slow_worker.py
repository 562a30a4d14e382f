"""Slows a worker of this machine down: it runs and is stopped in turns.

    python benchmarks/slow_worker.py PID RUNS STOPS   # until its standard input ends

The signals come from a process of their own. In the chief's, a thread could not continue
the worker whenever TensorFlow waits for that worker and holds the interpreter's lock, as it
does to delete a function from all tasks.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil


class Condition(NamedTuple):
    """How worker 0 is held up: it runs and is stopped in turns, in seconds."""

    name: str
    runs: float
    stops: float


@contextlib.contextmanager
def held_up(condition: Condition) -> Iterator[None]:
    """Holds up worker 0 meanwhile.

    Raises:
        SystemExit: If there is no such process, or it has ended meanwhile.
    """
    if not condition.stops:
        yield
        return
    pid = worker_0()
    command = [sys.executable, __file__, *map(str, (pid, *condition[1:]))]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as holding:
        yield
    if holding.returncode:
        raise SystemExit(f"worker 0, process {pid}, has ended while it was held up")


def worker_0() -> int:
    """Returns its process, which must be one of this machine."""
    address = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0]
    port = int(address.rpartition(":")[2])
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port:
            return each.pid
    raise SystemExit(f"worker 0, at {address}, is no process of this machine")


def hold_up(pid: int, runs: float, stops: float) -> None:
    """Stops a process and continues it in turns, until standard input ends."""
    while not _is_over(runs):
        os.kill(pid, signal.SIGSTOP)
        is_over = _is_over(stops)
        os.kill(pid, signal.SIGCONT)
        if is_over:
            return


def _is_over(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    hold_up(int(sys.argv[1]), *map(float, sys.argv[2:]))
